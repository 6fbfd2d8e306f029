// Who holds the socket: at most one service per path.
//
// The holder keeps a lock on the file `<socket>.lock` for as long as it lives, so the kernel, not a
// pid in a file, says whether someone is there; what stands in the file tells people who. A socket
// without a holder is what a killed service left behind, and is taken over.
#pragma once

#include <string>
#include <string_view>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::service {

class Instance {
 public:
  // Takes the lock, makes the socket's directory when only that is missing, and removes a stale
  // socket. `program` is told to those who come second. Errors: held by another (pid, program,
  // since when), path too long, something at the path that is no socket, no directory.
  static Result<Instance> Claim(const std::string& socket_path, std::string_view program);

  Instance(Instance&& other) noexcept = default;
  Instance& operator=(Instance&& other) noexcept = delete;
  // Removes the socket and the lock file.
  ~Instance();

  // What was found and taken over, for the log; empty when there was nothing.
  const std::string& notice() const { return notice_; }

 private:
  Instance(std::string socket_path, UniqueFd lock)
      : socket_path_(std::move(socket_path)), lock_(std::move(lock)) {}

  std::string socket_path_;
  UniqueFd lock_;
  std::string notice_;
};

}  // namespace headrace::service
