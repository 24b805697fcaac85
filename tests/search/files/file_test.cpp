// SPDX-License-Identifier: Apache-2.0
#include "search/files/file.h"
#include "search/files/nearest.h"
#include "search/files/sha256.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "search/files/error.h"

namespace ostinato {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(fs::path(testing::TempDir()) / ("ostinato-file-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_))
      found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }

  fs::path folder_;
};

template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(FileTest, WhatIsWrittenIsReadBack) {
  const std::string bytes("a\0b\r\n\xff", 6);
  write_file(folder_ / "x", bytes);
  EXPECT_EQ(read_file(folder_ / "x", 6), bytes);
}

TEST_F(FileTest, WritingReplacesAndLeavesNothingBeside) {
  write_file(folder_ / "x", std::string(100000, 'a'));
  write_file(folder_ / "x", "short");
  EXPECT_EQ(read_file(folder_ / "x", 100), "short");
  EXPECT_EQ(names(), std::vector<std::string>{"x"});
}

TEST_F(FileTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  fs::create_directory(folder_ / "taken");
  EXPECT_EQ(message_of([&] { write_file(folder_ / "taken", "new"); }),
            (folder_ / "taken").string() + ": cannot be written: Is a directory");
  EXPECT_EQ(names(), std::vector<std::string>{"taken"});
}

TEST_F(FileTest, AMissingFolderIsNamed) {
  EXPECT_EQ(message_of([&] { write_file(folder_ / "no" / "x", "new"); }),
            (folder_ / "no" / "x").string() + ": cannot be written: No such file or directory");
}

TEST_F(FileTest, ASymbolicLinkIsWrittenThrough) {
  write_file(folder_ / "real", "old");
  fs::create_symlink("real", folder_ / "link");
  write_file(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "real", 10), "new");
}

TEST_F(FileTest, ADeviceIsWrittenInPlace) {
  write_file("/dev/null", "nothing");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(FileTest, ANewFileObeysTheUmask) {
  const mode_t before = ::umask(027);
  write_file(folder_ / "x", "");
  ::umask(before);
  EXPECT_EQ(fs::status(folder_ / "x").permissions(), fs::perms(0640));
}

TEST_F(FileTest, WhoMayReadAFileStaysAsItWas) {
  write_file(folder_ / "x", "");
  fs::permissions(folder_ / "x", fs::perms(0600));
  write_file(folder_ / "x", "new");
  EXPECT_EQ(fs::status(folder_ / "x").permissions(), fs::perms(0600));
}

/// Killed at any instant: the file is one of those that were written, whole; what may be left beside it is
/// gone after the next write, but not the file of a process that writes still.
TEST_F(FileTest, AProcessThatIsKilledLeavesAWholeFileAlone) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  write_file(folder_ / "x", std::string(kBytes, 'a'));
  int written = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (char c = 'b';; c = c == 'z' ? 'b' : static_cast<char>(c + 1))
        write_file(folder_ / "x", std::string(kBytes, c));
    }
    ::usleep(static_cast<useconds_t>(1000 + 700 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    const std::string bytes = read_file(folder_ / "x", kBytes);
    EXPECT_EQ(bytes, std::string(kBytes, bytes.front())) << "round " << round;
    written += bytes.front() != 'a';
  }
  EXPECT_GT(written, 0) << "no process came to write";
  const fs::path abandoned = folder_ / ".ostinato-0123.tmp", alive = folder_ / ".ostinato-4567.tmp";
  for (const fs::path& path : {abandoned, alive}) std::ofstream(path) << "half";
  fs::create_directory(folder_ / ".ostinato-89ab.tmp");
  std::ofstream(folder_ / ".ostinato-89ab.tmp" / "x") << "half";
  const int held = ::open(alive.c_str(), O_WRONLY);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  write_file(folder_ / "x", "");
  EXPECT_EQ(names(), (std::vector<std::string>{alive.filename().string(), "x"}));
  ::close(held);
  write_file(folder_ / "x", "");
  EXPECT_EQ(names(), std::vector<std::string>{"x"});
}

TEST_F(FileTest, ASpareFileIsForItsUserAloneUnderANewName) {
  const fs::path one = write_spare("ostinato-test-", ".json", [](const Sink& sink) { sink("one"); });
  const fs::path two = write_spare("ostinato-test-", ".json", [](const Sink& sink) { sink("two"); });
  EXPECT_NE(one, two);
  EXPECT_TRUE(two.filename().string().starts_with("ostinato-test-") && two.extension() == ".json");
  EXPECT_EQ(read_file(one, 3) + read_file(two, 3), "onetwo");
  EXPECT_EQ(fs::status(one).permissions(), fs::perms(0600));
  fs::remove(one);
  fs::remove(two);
}

TEST_F(FileTest, AnUnreadableFileIsNamed) {
  EXPECT_EQ(message_of([&] { read_file(folder_ / "x", 1); }),
            (folder_ / "x").string() + ": cannot be read: No such file or directory");
  EXPECT_EQ(message_of([&] { read_file(folder_, 1); }), folder_.string() + ": this is a folder; give a file");
}

TEST_F(FileTest, AFileOverTheLimitIsRefused) {
  write_file(folder_ / "x", "1234567");
  EXPECT_EQ(read_file(folder_ / "x", 7), "1234567");
  EXPECT_EQ(message_of([&] { read_file(folder_ / "x", 6); }),
            (folder_ / "x").string() + ": is larger than 6 bytes");
}

// The vectors of FIPS 180-4 (NIST examples), and both sides of each padding border.
TEST(Sha256Test, KnownVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      sha256(
          "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
          "mnopqrstnopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PaddingBorders) {
  EXPECT_EQ(sha256(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256(std::string(56, 'a')), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(sha256(std::string(63, 'a')), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(sha256(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST(EditDistanceTest, EachEditCostsOne) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("time", "time"), 0u);
  EXPECT_EQ(edit_distance("time", "times"), 1u);
  EXPECT_EQ(edit_distance("time", "tme"), 1u);
  EXPECT_EQ(edit_distance("time", "tine"), 1u);
  EXPECT_EQ(edit_distance("time", "tiem"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("memory", "memroy"), 1u);
}

TEST(NearestTest, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string> keys = {"memory", "time", "workspace", "after"};
  EXPECT_EQ(nearest("memmory", keys), "memory");
  EXPECT_EQ(nearest("worksapce", keys), "workspace");
  EXPECT_EQ(nearest("tim", keys), "time");
  EXPECT_EQ(nearest("xyz", keys), "");
  EXPECT_EQ(nearest("q", std::array{"v", "x"}), "");  // every letter of it is another
  EXPECT_EQ(nearest(std::string(200, 'x'), std::vector<std::string>{std::string(201, 'x')}), "");
  EXPECT_EQ(nearest("tine", std::array{"tame", "time"}), "time");
}

}  // namespace
}  // namespace ostinato
