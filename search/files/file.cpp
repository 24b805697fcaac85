// SPDX-License-Identifier: Apache-2.0
#include "search/files/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "search/files/error.h"
#include "search/files/printable.h"

namespace ostinato {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what, int error) {
  throw InputError(path.string(), 0, what + ": " + std::generic_category().message(error));
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
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
    bytes.remove_prefix(written);
  }
  return true;
}

/// Writes to a file that is open, and throws where it cannot.
Sink into(int fd, const std::filesystem::path& path) {
  return [fd, path](std::string_view bytes) {
    if (!write_all(fd, bytes)) fail(path, "cannot be written", errno);
  };
}

constexpr const char* kOwnFiles = "/proc/self/fd";
constexpr std::string_view kBegin = ".ostinato-", kEnd = ".tmp";

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// An unguessable name in the same folder; a rename does not cross file systems.
std::filesystem::path name_beside(const std::filesystem::path& path) {
  std::random_device random;
  return folder_of(path) / fmt::format("{}{:08x}{:08x}{}", kBegin, random(), random(), kEnd);
}

/// Removes what processes that were killed have left in the folder: who writes such a file, or a folder with
/// one (search/python/files.py), holds a lock on it.
void remove_abandoned(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    const Descriptor file(::open(at->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) continue;
    std::error_code stays;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(at->path(), stays);
  }
}

/// What is to take the place of a file. It has no name while it is written, where the file system can do
/// that: a process that is killed leaves nothing behind. Who may read it: as the file that it replaces, else
/// as the umask says.
class Replacement {
 public:
  explicit Replacement(const std::filesystem::path& target)
      : target_(target), name_(name_beside(target)), file_(unnamed(folder_of(target))) {
    if (!file_.is_open()) file_ = named();
    struct stat before {};
    if (file_.is_open() && ::stat(target.c_str(), &before) == 0 && S_ISREG(before.st_mode))
      (void)::fchmod(get(), before.st_mode & 0777);
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    if (has_name_) ::unlink(name_.c_str());
  }

  int get() const { return file_.get(); }
  bool is_open() const { return file_.is_open(); }

  /// False with errno.
  bool put_in_place() {
    if (::fsync(get()) != 0 || !(has_name_ || give_name())) return false;
    if (::rename(name_.c_str(), target_.c_str()) != 0) return false;
    has_name_ = false;
    return file_.close();
  }

 private:
  static Descriptor unnamed(const std::filesystem::path& folder) {
#ifdef O_TMPFILE
    Descriptor file(
        ::access(kOwnFiles, X_OK) == 0 ? ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1);
    if (file.is_open()) ::flock(file.get(), LOCK_EX);
    return file;
#else
    (void)folder;
    return Descriptor(-1);
#endif
  }

  /// Once more where remove_abandoned() was there before the lock.
  Descriptor named() {
    for (;; name_ = name_beside(target_)) {
      Descriptor file(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
      if (!file.is_open()) return file;
      (void)::flock(file.get(), LOCK_EX);  // without locks nothing removes it, either
      struct stat status {};
      has_name_ = ::fstat(file.get(), &status) != 0 || status.st_nlink > 0;
      if (has_name_) return file;
    }
  }

  bool give_name() {
    const std::string own = fmt::format("{}/{}", kOwnFiles, get());
    has_name_ = ::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name_.c_str(), AT_SYMLINK_FOLLOW) == 0;
    return has_name_;
  }

  std::filesystem::path target_, name_;
  Descriptor file_;
  bool has_name_ = false;
};

/// Flushes the folder's entry. Some file systems refuse to sync a folder: the data is safe there all the
/// same.
void sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.is_open()) ::fsync(opened.get());
}

/// The system would take what stands before it for the name.
void refuse_nul(const std::filesystem::path& path) {
  if (path.native().find('\0') != std::string::npos)
    throw InputError(printable(path.native()), 0, "no file has a NUL character in its name");
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  refuse_nul(path);
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path, "cannot be read", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot be read", errno);
  if (S_ISDIR(status.st_mode)) throw InputError(path.string(), 0, "this is a folder; give a file");
  std::string bytes;
  if (S_ISREG(status.st_mode)) bytes.reserve(std::min<std::size_t>(status.st_size, max_bytes) + 1);
  std::vector<char> buffer(std::size_t{1} << 16);
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read", errno);
    if (got == 0) return bytes;
    bytes.append(buffer.data(), got);
    if (bytes.size() > max_bytes) {
      constexpr std::size_t mebibyte = std::size_t{1} << 20;
      throw InputError(
          path.string(), 0,
          "is larger than " + (max_bytes % mebibyte == 0 ? std::to_string(max_bytes / mebibyte) + " MiB"
                                                         : std::to_string(max_bytes) + " bytes"));
    }
  }
}

bool is_special(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  write_file(path, [bytes](const Sink& sink) { sink(bytes); });
}

void write_file(const std::filesystem::path& path, const std::function<void(const Sink&)>& write) {
  refuse_nul(path);
  if (is_special(path)) {
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.is_open()) fail(path, "cannot be written", errno);
    return write(into(file.get(), path));
  }
  // Through a symbolic link the file behind it is replaced, not the link.
  std::error_code unresolved;
  std::filesystem::path target = std::filesystem::weakly_canonical(path, unresolved);
  if (unresolved) target = path;
  remove_abandoned(folder_of(target));
  Replacement file(target);
  if (!file.is_open()) fail(path, "cannot be written", errno);
  write(into(file.get(), path));
  if (!file.put_in_place()) fail(path, "cannot be written", errno);
  sync_folder(target.parent_path());
}

std::filesystem::path write_spare(const std::string& begin, const std::string& end,
                                  const std::function<void(const Sink&)>& write) {
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / (begin + "XXXXXX" + end)).string();
  Descriptor file(::mkostemps(name.data(), static_cast<int>(end.size()), O_CLOEXEC));
  if (!file.is_open()) fail(name, "cannot be written", errno);
  try {
    write(into(file.get(), name));
    if (::fsync(file.get()) != 0 || !file.close()) fail(name, "cannot be written", errno);
  } catch (...) {
    ::unlink(name.c_str());
    throw;
  }
  return name;
}

}  // namespace ostinato
