// SPDX-License-Identifier: Apache-2.0
#include "search/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <vector>

#include "search/files/error.h"

namespace ostinato {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what, int error) {
  throw InputError(path.string(), 0, what + ": " + std::generic_category().message(error));
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  /// False (with errno) where the system reports a failure that it had kept back until now.
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Pipes and devices (/dev/stdout) are written in place: a rename would put a regular file where the device
/// was.
bool is_special(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

void write_special(const std::filesystem::path& path, std::string_view bytes) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path, "cannot be written", errno);
  if (!write_all(file.get(), bytes)) fail(path, "cannot be written", errno);
}

/// A name in the same folder that no other thread or process uses; a rename does not cross file systems.
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  const std::string name =
      ".ostinato-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
  return path.parent_path() / name;
}

/// Flushes the folder's entry. Some file systems refuse to sync a folder: the data is safe there all the
/// same.
void sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.is_open()) ::fsync(opened.get());
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path, "cannot be read", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot be read", errno);
  std::string bytes;
  if (S_ISREG(status.st_mode)) bytes.reserve(std::min<std::size_t>(status.st_size, max_bytes) + 1);
  std::vector<char> buffer(std::size_t{1} << 16);
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read", errno);
    if (got == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
    if (bytes.size() > max_bytes) {
      throw InputError(path.string(), 0, "is larger than " + std::to_string(max_bytes) + " bytes");
    }
  }
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  if (is_special(path)) return write_special(path, bytes);
  // Through a symbolic link the file behind it is replaced, not the link.
  std::error_code unresolved;
  std::filesystem::path target = std::filesystem::weakly_canonical(path, unresolved);
  if (unresolved) target = path;
  const std::filesystem::path temporary = temporary_beside(target);
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.is_open()) fail(path, "cannot be written", errno);
  if (!write_all(file.get(), bytes) || ::fsync(file.get()) != 0 || !file.close() ||
      ::rename(temporary.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail(path, "cannot be written", error);
  }
  sync_folder(target.parent_path());
}

// Optimal string alignment (restricted Damerau-Levenshtein): O(|a| |b|) time, three rows of memory.

}  // namespace ostinato
