// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/peer_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ostinato {

// By its number: C libraries know pidfd_open() since glibc 2.36 only.
PeerProcess::PeerProcess(std::int64_t pid)
    : file_(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U))) {}

PeerProcess::~PeerProcess() {
  if (file_ >= 0) ::close(file_);
}

bool PeerProcess::has_ended() const {
  pollfd ended{.fd = file_, .events = POLLIN, .revents = 0};
  return file_ < 0 || ::poll(&ended, 1, 0) > 0;
}

}  // namespace ostinato
