// Failures that a test asked for, and counts. One for a process; thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
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

  // 1: aborts do not return; 2: GPUs do not heed them either.
  void HoldAborts(int hold);
  void AwaitAborts(int hold);
  void HoldInits(bool hold);
  void AwaitInits();

  // Takes a part of `longest`, by the seed.
  void Delay(std::chrono::microseconds longest);

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
  int holds_aborts_ = 0;
  bool holds_inits_ = false;
  std::optional<std::minstd_rand> random_{1U};  // none: no delays
  NcclDoubleCounts counts_{};
};

}  // namespace headrace::nccl_double
