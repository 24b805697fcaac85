// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/mailbox.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <new>
#include <random>
#include <string>
#include <string_view>

#include "plugin/executor/error.h"

namespace ostinato {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* kName = "ostinato";
constexpr std::string_view kShown = "/memfd:ostinato (deleted)";  ///< what /proc says of it
constexpr std::size_t kLine = 64;  ///< cache line: what one side writes often is apart from the rest

/// Before it sleeps, a side looks for about as long as sleeping and being woken takes: at most twice the best
/// choice. It yields meanwhile, as there may be fewer cores than ranks.
constexpr auto kLooks = 50us;

/// A side that sleeps looks after the other one as often.
constexpr auto kCheck = 100ms;

using State = std::atomic<std::uint32_t>;
static_assert(State::is_always_lock_free);

/// States of a slot; its t-th message is number t * slots + its place. They may wrap around.
std::uint32_t free_for(std::int64_t turn) { return static_cast<std::uint32_t>(2 * turn); }
std::uint32_t full_with(std::int64_t turn) { return static_cast<std::uint32_t>(2 * turn + 1); }

void sleep_while(State& state, std::uint32_t value, std::chrono::nanoseconds at_most) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec time{.tv_sec = whole.count(), .tv_nsec = (at_most - whole).count()};
  ::syscall(SYS_futex, &state, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake(State& state) { ::syscall(SYS_futex, &state, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

std::size_t rounded(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

struct alignas(kLine) Mailbox::Header {
  std::int64_t token[2];
  std::int64_t slots;
  std::int64_t slot_bytes;
};

struct alignas(kLine) Mailbox::Slot {
  State state;     ///< free_for(turn), then full_with(turn)
  State sleepers;  ///< sides that wait for a change

  void change(std::uint32_t to) {
    state.store(to);
    if (sleepers.load() > 0) wake(state);
  }

  /// Until `done(state)`; false when the time is up.
  template <typename Done>
  bool wait(Done done, std::chrono::nanoseconds timeout, const PeerProcess& other) {
    const auto begin = Clock::now();
    auto now = begin;
    for (; now - begin < std::min<std::chrono::nanoseconds>(kLooks, timeout); now = Clock::now()) {
      if (done(state.load())) return true;
      ::sched_yield();
    }
    for (; now - begin < timeout; now = Clock::now()) {
      const bool ended = other.has_ended();  // asked first: what it did before its end counts
      ++sleepers;
      const std::uint32_t seen = state.load();
      if (!done(seen) && !ended)
        sleep_while(state, seen, std::min<std::chrono::nanoseconds>(kCheck, timeout - (now - begin)));
      --sleepers;
      if (done(state.load())) return true;
      if (ended) throw ExecutionError("the other rank's process has ended");
    }
    return done(state.load());
  }
};

std::optional<Mailbox> Mailbox::make(int slots, std::int64_t slot_bytes) {
  const std::size_t bytes = sizeof(Header) + slots * (sizeof(Slot) + rounded(slot_bytes));
  const int file = ::memfd_create(kName, MFD_CLOEXEC);
  // Memory that runs out is found here, and not by a signal at the first write.
  if (file < 0 || ::posix_fallocate(file, 0, static_cast<off_t>(bytes)) != 0) {
    if (file >= 0) ::close(file);
    return std::nullopt;
  }
  std::optional<Mailbox> made = map(file);
  if (!made) return std::nullopt;
  std::random_device random;
  const auto word = [&] { return static_cast<std::int64_t>((std::uint64_t{random()} << 32) | random()); };
  new (made->memory_) Header{.token = {word(), word()}, .slots = slots, .slot_bytes = slot_bytes};
  return made;  // fresh memory is zero: every slot is free for its first message
}

std::optional<Mailbox> Mailbox::open(const Address& address) {
  const std::string path = "/proc/" + std::to_string(address[0]) + "/fd/" + std::to_string(address[1]);
  // Numbers from another host may mean anything here, a device too: looked at before it is opened.
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length < 0 || std::string_view(target.data(), length) != kShown) return std::nullopt;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::optional<Mailbox> opened = map(file);
  if (!opened) return std::nullopt;
  opened->close();
  const Header& header = opened->header();
  if (header.token[0] != address[2] || header.token[1] != address[3]) return std::nullopt;
  return opened;
}

std::optional<Mailbox> Mailbox::map(int file) {
  struct stat status {};
  void* memory = MAP_FAILED;
  if (::fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(Header))) {
    memory = ::mmap(nullptr, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory != MAP_FAILED) return Mailbox(memory, status.st_size, file);
  ::close(file);
  return std::nullopt;
}

Mailbox::~Mailbox() {
  close();
  if (memory_) ::munmap(memory_, bytes_);
}

void Mailbox::close() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

Mailbox::Address Mailbox::address() const {
  return {::getpid(), file_, header().token[0], header().token[1]};
}

std::int64_t Mailbox::slot_bytes() const { return header().slot_bytes; }

Mailbox::Slot& Mailbox::state(std::int64_t message) const {
  std::byte* const slots = static_cast<std::byte*>(memory_) + sizeof(Header);
  return reinterpret_cast<Slot*>(slots)[message % header().slots];
}

std::byte* Mailbox::slot(std::int64_t message) {
  const Header& h = header();
  std::byte* const first = static_cast<std::byte*>(memory_) + sizeof(Header) + h.slots * sizeof(Slot);
  return first + (message % h.slots) * rounded(h.slot_bytes);
}

bool Mailbox::is_free(std::int64_t message) const {
  return state(message).state.load() == free_for(message / header().slots);
}

void Mailbox::put(std::int64_t message) { state(message).change(full_with(message / header().slots)); }

bool Mailbox::wait_for(std::int64_t message, std::chrono::nanoseconds timeout, const PeerProcess& writer) {
  const std::uint32_t full = full_with(message / header().slots);
  return state(message).wait([full](std::uint32_t now) { return now == full; }, timeout, writer);
}

void Mailbox::take(std::int64_t message) { state(message).change(free_for(message / header().slots + 1)); }

bool Mailbox::wait_taken(std::int64_t message, std::chrono::nanoseconds timeout, const PeerProcess& reader) {
  // Only the writer refills it, so what is not this message any more was taken.
  const std::uint32_t full = full_with(message / header().slots);
  return state(message).wait([full](std::uint32_t now) { return now != full; }, timeout, reader);
}

}  // namespace ostinato
