// Ownership of the socket and the board: at most one service for each path.
//
// A socket without a holder is what a killed service left behind, and is taken over.
#pragma once

#include <string>
#include <string_view>

#include "ipc/base/result.h"
#include "service/config/file_lock.h"

namespace headrace::service {

class Instance {
 public:
  // Locks both, makes the socket's directory when only that is missing, and removes a stale socket.
  // `program` is shown to those who come second. Errors: held by another (pid, program, since
  // when), path too long, something at the path that is no socket, no directory.
  static Result<Instance> Claim(const std::string& socket_path, const std::string& board_path,
                                std::string_view program);

  // The errors of Claim, without taking or making anything, but for one: that a service of ours
  // holds the socket is the answer instead.
  static Result<bool> Check(const std::string& socket_path, const std::string& board_path);

  Instance(Instance&& other) noexcept = default;
  Instance& operator=(Instance&& other) noexcept = delete;
  // Removes the socket and the lock files.
  ~Instance();

  // What was found and taken over, for the log; empty when there was nothing.
  const std::string& notice() const { return notice_; }

 private:
  Instance(std::string socket_path, FileLock socket_lock, FileLock board_lock)
      : socket_path_(std::move(socket_path)),
        socket_lock_(std::move(socket_lock)),
        board_lock_(std::move(board_lock)) {}

  std::string socket_path_;
  FileLock socket_lock_;
  FileLock board_lock_;
  std::string notice_;
};

}  // namespace headrace::service
