#include "tests/support/nccl_double/settings.h"

#include <cstdlib>
#include <memory>
#include <sstream>
#include <thread>

namespace headrace::nccl_double {

Settings& Settings::Get() {
  // Stays until the process has ended: threads of hubs may come later than destructors.
  static Settings* const settings = std::unique_ptr<Settings>(new Settings()).release();
  return *settings;
}

Settings::Settings() {
  if (const char* version = std::getenv("HEADRACE_NCCL_DOUBLE_VERSION")) {
    version_ = std::stoi(version);
  }
  if (const char* given = std::getenv("HEADRACE_NCCL_DOUBLE_SEED")) {
    const auto seed = static_cast<std::uint32_t>(std::stoul(given));
    random_.reset();
    if (seed != 0) random_.emplace(seed);
  }
  const char* fail = std::getenv("HEADRACE_NCCL_DOUBLE_FAIL");
  std::istringstream rules(fail != nullptr ? fail : "");
  for (std::string rule; std::getline(rules, rule, ',');) {
    std::istringstream parts(rule);
    Failure failure;
    std::string nth;
    std::string result;
    std::getline(parts, failure.function, ':');
    std::getline(parts, nth, ':');
    std::getline(parts, result, ':');
    failure.left = std::stoull(nth);
    failure.result =
        result.empty() ? NcclResult::kInProgress : static_cast<NcclResult>(std::stoul(result));
    failures_.push_back(failure);
  }
}

NcclResult Settings::Enter(const std::string& function) {
  const std::lock_guard lock(mutex_);
  for (Failure& failure : failures_) {
    if (failure.function != function || failure.left == 0) continue;
    if (--failure.left == 0) return failure.result;
  }
  return NcclResult::kSuccess;
}

void Settings::Fail(const char* function, std::uint64_t nth, NcclResult result) {
  const std::lock_guard lock(mutex_);
  if (function == nullptr) {
    failures_.clear();
  } else {
    failures_.push_back({function, nth, result});
  }
}

void Settings::HoldAborts(int hold) {
  const std::lock_guard lock(mutex_);
  holds_aborts_ = hold;
  released_.notify_all();
}

void Settings::AwaitAborts(int hold) {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [&] { return holds_aborts_ < hold; });
}

void Settings::HoldInits(bool hold) {
  const std::lock_guard lock(mutex_);
  holds_inits_ = hold;
  released_.notify_all();
}

void Settings::AwaitInits() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [this] { return !holds_inits_; });
}

void Settings::Delay(std::chrono::microseconds longest) {
  std::chrono::microseconds delay{};
  {
    const std::lock_guard lock(mutex_);
    if (!random_) return;
    delay = longest * static_cast<std::int64_t>((*random_)() % 1000) / 1000;
  }
  std::this_thread::sleep_for(delay);
}

void Settings::Count(std::uint64_t NcclDoubleCounts::*count, std::int64_t change) {
  const std::lock_guard lock(mutex_);
  counts_.*count += static_cast<std::uint64_t>(change);
}

NcclDoubleCounts Settings::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace headrace::nccl_double

using headrace::nccl_double::Settings;

void headrace_nccl_double_counts(NcclDoubleCounts* counts) { *counts = Settings::Get().counts(); }

void headrace_nccl_double_fail(const char* function, std::uint64_t nth, std::uint32_t result) {
  Settings::Get().Fail(function, nth, static_cast<headrace::transport::NcclResult>(result));
}

void headrace_nccl_double_hold_aborts(int hold) { Settings::Get().HoldAborts(hold); }

void headrace_nccl_double_hold_inits(int hold) { Settings::Get().HoldInits(hold != 0); }
