// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/mailbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "plugin/executor/error.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;

void write(Mailbox& box, std::int64_t message, std::int64_t value) {
  ASSERT_TRUE(box.is_free(message));
  std::memcpy(box.slot(message), &value, sizeof value);
  box.put(message);
}

std::int64_t read(Mailbox& box, std::int64_t message, const PeerProcess& writer) {
  EXPECT_TRUE(box.wait_for(message, kLong, writer));
  std::int64_t value = 0;
  std::memcpy(&value, box.slot(message), sizeof value);
  box.take(message);
  return value;
}

void carry(Mailbox& out, Mailbox& in) {
  const PeerProcess self(::getpid());
  std::thread reader([&] {
    for (std::int64_t m = 0; m < 1000; ++m) EXPECT_EQ(read(in, m, self), 7 * m);
  });
  for (std::int64_t m = 0; m < 1000; ++m) {
    EXPECT_TRUE(m < 3 || out.wait_taken(m - 3, kLong, self));
    write(out, m, 7 * m);
  }
  reader.join();
}

TEST(Mailbox, CarriesMessagesInSlotsThatAreUsedAgain) {
  auto out = Mailbox::make(3, 100);
  ASSERT_TRUE(out);
  auto in = Mailbox::open(out->address());
  ASSERT_TRUE(in);
  EXPECT_EQ(in->slot_bytes(), 100);
  carry(*out, *in);
}

/// Of two mappings the thread sanitizer does not know that they are the same memory; of one it sees whether
/// put() and take() order what lies in a slot.
TEST(Mailbox, OrdersWhatLiesInASlot) {
  auto box = Mailbox::make(3, 100);
  ASSERT_TRUE(box);
  carry(*box, *box);
}

TEST(Mailbox, MessagesMayBeTakenOutOfTurn) {
  auto out = Mailbox::make(2, 8);
  auto in = Mailbox::open(out->address());
  ASSERT_TRUE(in);
  const PeerProcess self(::getpid());
  write(*out, 0, 10);
  write(*out, 1, 11);
  EXPECT_FALSE(out->is_free(2));
  EXPECT_EQ(read(*in, 1, self), 11);
  EXPECT_TRUE(out->wait_taken(1, 0ns, self));
  EXPECT_FALSE(out->wait_taken(0, 1ms, self));
  EXPECT_FALSE(out->is_free(2));
  EXPECT_EQ(read(*in, 0, self), 10);
  EXPECT_TRUE(out->is_free(2));
  EXPECT_FALSE(in->wait_for(2, 1ms, self));
}

TEST(Mailbox, IsNotFoundWhereThereIsNone) {
  auto box = Mailbox::make(1, 8);
  ASSERT_TRUE(box);
  const auto [pid, file, first, second] = box->address();
  EXPECT_TRUE(Mailbox::open({pid, file, first, second}));
  EXPECT_FALSE(Mailbox::open({pid, file, first, second + 1}));  // another one
  EXPECT_FALSE(Mailbox::open({0, file, first, second}));        // no process
  const int null = ::open("/dev/null", O_RDONLY);
  EXPECT_FALSE(Mailbox::open({pid, null, first, second}));  // a device
  ::close(null);
  box->close();
  EXPECT_FALSE(Mailbox::open({pid, file, first, second}));
}

/// Runs in a process of its own.
[[noreturn]] void answer_three_and_end(const Mailbox::Address& requests, Mailbox answers) {
  auto in = Mailbox::open(requests);
  const PeerProcess parent(::getppid());
  for (std::int64_t m = 0; in && m < 3; ++m) {
    std::int64_t value = 0;
    if (!in->wait_for(m, kLong, parent)) break;
    std::memcpy(&value, in->slot(m), sizeof value);
    in->take(m);
    value *= 2;
    std::memcpy(answers.slot(m), &value, sizeof value);
    answers.put(m);
  }
  ::_exit(0);
}

TEST(Mailbox, WorksBetweenProcessesAndNoticesTheEndOfOne) {
  auto requests = Mailbox::make(4, 8);
  auto answers = Mailbox::make(4, 8);
  ASSERT_TRUE(requests && answers);
  const pid_t child = ::fork();
  if (child == 0) answer_three_and_end(requests->address(), std::move(*answers));
  const PeerProcess other(child);
  for (std::int64_t m = 0; m < 4; ++m) write(*requests, m, m + 1);
  for (std::int64_t m = 0; m < 3; ++m) EXPECT_EQ(read(*answers, m, other), 2 * (m + 1));
  EXPECT_THROW(answers->wait_for(3, kLong, other), ExecutionError);
  EXPECT_THROW(requests->wait_taken(3, kLong, other), ExecutionError);
  EXPECT_TRUE(requests->wait_taken(2, kLong, other));  // what it did before counts
  EXPECT_TRUE(other.has_ended());
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ostinato
