// The Control of a session that has lost its service and could not reconnect. Every call fails with
// the cause of the loss, except Leave, which has nothing to do.
#pragma once

#include <utility>

#include "client/lib/control.h"

namespace headrace::client {

class DisconnectedControl final : public Control {
 public:
  explicit DisconnectedControl(Error cause) : cause_(std::move(cause)) {}

  Result<std::uint32_t> RegisterSegment(int, std::size_t) override { return cause_; }
  Result<std::uint32_t> RegisterDeviceSegment(const DeviceHandle&,
                                              std::span<const UniqueFd>) override {
    return cause_;
  }
  Status ReleaseSegment(std::uint32_t) override { return cause_; }
  Result<std::uint32_t> RegisterTensors(std::span<const TensorSpec>) override { return cause_; }
  Status ReleaseTensors(std::uint32_t, std::uint32_t) override { return cause_; }
  Status SetLayout(const LayoutNotice&) override { return cause_; }
  // There is nothing to leave any more, and whoever lost it has the cause.
  Status Leave() override { return {}; }
  bool IsThere() const override { return false; }
  void BoundCalls(TimeNs) override {}
  void CloseInChild() override {}

 private:
  const Error cause_;
};

}  // namespace headrace::client
