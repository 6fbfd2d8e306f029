// A transport for memory of GPUs that the driver's double plays, which this process can touch: it
// carries out a transfer at a time, at once, by the arithmetic of the reference.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport/transport.h"

namespace headrace::support {

class DeviceLoopback final : public transport::Transport {
 public:
  DeviceLoopback();

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  // Ends the test where no member is a GPU's.
  [[nodiscard]] transport::PostResult Post(const transport::Transfer& transfer,
                                           TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<transport::Completion>& completions) override;

  // While true nothing moves; cancelled transfers end.
  bool stopped = false;
  // What it took, in order.
  std::vector<transport::Transfer> taken;

 private:
  static void Carry(const transport::Transfer& transfer);

  transport::Capabilities capabilities_;
  std::deque<transport::Transfer> open_;
  std::vector<std::uint64_t> cancelled_;
};

}  // namespace headrace::support
