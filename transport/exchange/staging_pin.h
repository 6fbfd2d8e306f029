// Whether GPUs reach the staging of a group. Its first transfer of a GPU's memory asks for that,
// and waits: pinning takes long, and the lane's thread does not do it. Who drains the requests does
// (network.h). It is given back with the group, before the staging is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {

class StagingPin {
 public:
  // A transfer needs it.
  void Want() {
    if (state_ == State::kNone && !ends_) state_ = State::kWanted;
  }
  // No transfer needs it any more, nor will.
  void End() {
    if (std::exchange(ends_, true)) return;
    if (state_ == State::kWanted) state_ = State::kNone;
    if (state_ == State::kPinned) state_ = State::kUnwanted;
  }

  // What is to be done now: true: pin it, false: unpin it. Each once; answered by OnPinned.
  std::optional<bool> PopRequest() {
    if (state_ == State::kWanted) {
      state_ = State::kUnderWay;
      return true;
    }
    if (state_ != State::kUnwanted) return std::nullopt;
    state_ = State::kUnderWay;
    return false;
  }
  // Where GPUs find it; null: they do not.
  void OnPinned(std::byte* on_gpus) {
    HR_CHECK(state_ == State::kUnderWay);
    on_gpus_ = on_gpus;
    state_ = on_gpus == nullptr ? State::kNone : ends_ ? State::kUnwanted : State::kPinned;
  }

  bool is_pinned() const { return state_ == State::kPinned; }
  // Nobody has to unpin it.
  bool is_free() const { return state_ == State::kNone; }
  // Where GPUs find an address of the staging, which is pinned.
  std::byte* OnGpus(std::span<std::byte> staging, const std::byte* address) const {
    HR_CHECK(address >= staging.data() && address <= staging.data() + staging.size());
    return on_gpus_ + (address - staging.data());
  }

 private:
  enum class State : std::uint8_t { kNone, kWanted, kUnderWay, kPinned, kUnwanted };

  State state_ = State::kNone;
  bool ends_ = false;
  std::byte* on_gpus_ = nullptr;
};

}  // namespace headrace::transport
