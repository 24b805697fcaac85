// SPDX-License-Identifier: Apache-2.0
#pragma once
// Another process of this host, to be asked whether it still lives while one waits for it.

#include <cstdint>
#include <utility>

namespace ostinato {

class PeerProcess {
 public:
  /// No process yet: counts as ended.
  PeerProcess() = default;

  /// The process that has this number now; a later one of the same number is not mistaken for it.
  explicit PeerProcess(std::int64_t pid);
  PeerProcess(PeerProcess&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  PeerProcess& operator=(PeerProcess&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~PeerProcess();

  /// False where the system cannot tell (Linux before 5.3), or forbids it.
  bool is_known() const { return file_ >= 0; }

  bool has_ended() const;

 private:
  int file_ = -1;
};

}  // namespace ostinato
