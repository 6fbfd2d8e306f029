// Failures that a test asked for, and counts. One for a process; thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/nccl_double/nccl_double.h"

namespace headrace::nccl_double {

using transport::NcclResult;

class Settings {
 public:
  // The settings of this process, read from the environment when they are first asked for.
  static Settings& Get();

  int version() const { return version_; }
  // What the function's call that is being made must return; kSuccess: what it does.
  NcclResult Enter(const std::string& function);
  void Fail(const char* function, std::uint64_t nth, NcclResult result);

  void HoldAborts(bool hold);
  void AwaitAborts();

  void Count(std::uint64_t NcclDoubleCounts::*count, std::int64_t change);
  NcclDoubleCounts counts();

 private:
  struct Failure {
    std::string function;
    std::uint64_t left = 0;
    NcclResult result = NcclResult::kSuccess;
  };

  Settings();

  std::mutex mutex_;
  std::condition_variable released_;
  int version_ = 22809;
  std::vector<Failure> failures_;
  bool holds_aborts_ = false;
  NcclDoubleCounts counts_{};
};

}  // namespace headrace::nccl_double
