// SPDX-License-Identifier: Apache-2.0
#pragma once
// One-way messages between two processes of one host: slots in shared memory, one writer, one reader, no lock
// and no thread.
//
//   Mailbox out = *Mailbox::make(6, 65536);               // the writer's: six slots of 64 KiB
//   Mailbox in = *Mailbox::open(out.address());           // the reader's, in another process or the same one
//   std::memcpy(out.slot(k), bytes, size);                // message k lies in slot k % 6
//   out.put(k);
//   if (in.wait_for(k, timeout, writer)) {
//     std::memcpy(to, in.slot(k), size);
//     in.take(k);
//   }
//   out.wait_taken(k, timeout, reader);
//
// Messages are numbered 0, 1, 2, ... by whoever uses it; the reader may take them out of turn. The memory has
// no name in any file system (memfd_create): a process that dies leaves nothing behind.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "plugin/executor/peer_process.h"

namespace ostinato {

class Mailbox {
 public:
  /// Where another process of this host finds it: process, file descriptor, and a random number that tells it
  /// from what else may lie there.
  using Address = std::array<std::int64_t, 4>;

  /// Room for `slots` messages of `slot_bytes` each, all of it reserved at once. None where the system has no
  /// such memory (left).
  static std::optional<Mailbox> make(int slots, std::int64_t slot_bytes);

  /// None where there is no such mailbox on this host, or it may not be opened.
  static std::optional<Mailbox> open(const Address& address);

  Mailbox(Mailbox&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        bytes_(other.bytes_),
        file_(std::exchange(other.file_, -1)) {}
  Mailbox& operator=(Mailbox&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~Mailbox();

  Address address() const;

  /// From now on it cannot be opened; those who have it keep it.
  void close();

  std::int64_t slot_bytes() const;
  std::byte* slot(std::int64_t message);

  /// The writer: is the slot of `message` free? Then it may be filled, and put.
  bool is_free(std::int64_t message) const;
  void put(std::int64_t message);

  /// The reader: has `message` been put? Then it may be read, and taken. False when the time is up. Throws
  /// ExecutionError where `writer` has ended.
  bool wait_for(std::int64_t message, std::chrono::nanoseconds timeout, const PeerProcess& writer);
  void take(std::int64_t message);

  /// The writer: has a message that was put been taken? As wait_for().
  bool wait_taken(std::int64_t message, std::chrono::nanoseconds timeout, const PeerProcess& reader);

 private:
  struct Header;
  struct Slot;

  Mailbox(void* memory, std::size_t bytes, int file) : memory_(memory), bytes_(bytes), file_(file) {}
  static std::optional<Mailbox> map(int file);

  Header& header() const { return *static_cast<Header*>(memory_); }
  Slot& state(std::int64_t message) const;

  void* memory_;
  std::size_t bytes_;
  int file_;
};

}  // namespace ostinato
