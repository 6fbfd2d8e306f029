// At most one holder of a path: the lock on its lock file (ipc/base/lock_file.h), kept for as long
// as this lives.
//
// The kernel, not a pid in a file, says whether the holder lives; what stands in the file tells
// people who it is.
#pragma once

#include <string>
#include <string_view>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::service {

class FileLock {
 public:
  // `what` is what is locked, for the errors: "socket", "board"; `program` is shown to those who
  // come second. Errors: held by another (pid, program, since when); the file cannot be made.
  static Result<FileLock> Acquire(const std::string& path, std::string_view what,
                                  std::string_view program);

  FileLock(FileLock&& other) noexcept = default;
  FileLock& operator=(FileLock&& other) noexcept = delete;
  // Removes the lock file.
  ~FileLock();

  // False after a move.
  bool held() const { return static_cast<bool>(fd_); }

 private:
  FileLock(std::string lock_path, UniqueFd fd)
      : lock_path_(std::move(lock_path)), fd_(std::move(fd)) {}

  std::string lock_path_;
  UniqueFd fd_;  // holds the lock; none after a move
};

}  // namespace headrace::service
