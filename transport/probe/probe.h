// Measures what a group's transfers cost, before its first real one: all-reduces of growing size,
// several of each. Every node with data runs its own probe at the same time.
//
// The next step must be the same on every node, or one would wait for a transfer that another never
// posts. So after each size the nodes agree on its time, by an all-reduce of the maximum, and
// everything after that (whether a larger size follows, and the line itself) comes from the agreed
// times. The line is the same on every node.
//
// One thread, no clock: the lane calls Step after each DoWork and offers it every completion.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "transport/network.h"
#include "transport/probe/line_fit.h"

namespace headrace::transport {

struct ProbeStep {
  std::size_t size = 0;     // of the memory that is all-reduced
  std::uint32_t times = 0;  // the first of them warms up and does not count
};
// At 1 Gbit/s and two nodes the first five take 0.2 s, and the sixth is left out.
inline constexpr std::array<ProbeStep, 6> kProbeSteps{
    {{4 << 10, 12}, {32 << 10, 8}, {256 << 10, 6}, {1 << 20, 4}, {4 << 20, 4}, {16 << 20, 4}}};

// A size is left out when one transfer of it would take longer, going by the size before it.
inline constexpr double kProbeTransferSecondsMax = 0.1;
// Positions that a probe may use, from its first on: a group's real transfers come after them.
inline constexpr std::uint64_t kProbePositions = 64;

struct ProbeGroup {
  std::uint32_t group = 0;
  std::uint32_t members_count = 0;  // with data
  std::uint32_t servers_count = 0;
  std::uint32_t self = 0;  // below members_count: servers answer, and run no probe
  std::uint64_t position_first = 0;
  std::uint64_t token = 0;  // of all transfers of the probe; nobody else's
};

// Bytes that a node with data sends in an all-reduce of `size` bytes: the size to which cost lines
// refer.
double BytesSent(std::uint32_t members_count, std::uint32_t servers_count, double size);

class CostProbe {
 public:
  // Allocates the memory that is sent to and fro, and frees it with the probe.
  explicit CostProbe(const ProbeGroup& group);

  // Posts the next transfer when the one before has ended and the transport is not busy. Returns
  // whether it posted something.
  bool Step(NetworkTransport& transport, TimeNs now);
  // True when the completion was the probe's.
  bool OnCompletion(const Completion& completion);

  // The line once it is known, or why it will not be: a transfer's code and cause, kMismatch when
  // the nodes do not run the same probe.
  const std::optional<Result<CostLine>>& result() const { return result_; }

 private:
  void EndTransfer(const Completion& completion);
  void EndAgreement();
  Transfer NextTransfer();
  double MedianSeconds();

  ProbeGroup group_;
  std::vector<std::byte> memory_;
  double agreed_seconds_ = 0;  // the memory of the agreement
  std::size_t step_ = 0;       // of kProbeSteps
  std::uint32_t time_ = 0;     // of that step
  bool agreeing_ = false;
  bool posted_ = false;
  std::uint64_t position_ = 0;
  std::vector<double> seconds_;      // of the step's transfers
  std::vector<CostSample> samples_;  // agreed
  std::optional<Result<CostLine>> result_;
};

}  // namespace headrace::transport
