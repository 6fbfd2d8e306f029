// Tests whether a lane works, as ProbeLane requests.
//
// Inside the node the answer comes after the transport has summed a few bytes of this class, beside
// the stages and ahead of those that wait; between nodes after the transport has driven its wire
// once. Only the asker is notified. The lane's thread; nothing is allocated but the texts of
// errors.
#pragma once

#include <array>
#include <boost/circular_buffer.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "service/actor/request.h"
#include "service/dispatch/messages.h"
#include "transport/transport.h"

namespace headrace::service {

// Tokens of the lane's own transfers have this bit. Stages' begin with a job's number, which never
// gets that far.
inline constexpr std::uint64_t kOwnToken = std::uint64_t{1} << 63;

class LaneProbe {
 public:
  static constexpr std::size_t kAskedMax = 16;  // and not answered
  enum class Way : std::uint8_t { kSum, kRoundTrip };

  // The transport outlives the probe, and touches the probe's memory until the sum has ended.
  LaneProbe(std::uint8_t lane, Way way, transport::Transport& transport);
  LaneProbe(const LaneProbe&) = delete;
  LaneProbe& operator=(const LaneProbe&) = delete;

  // False when too many are open: the lane moves nothing, or is asked too often.
  [[nodiscard]] bool Ask(RequestToken token);

  // Before the transport works: posts the sum that is due, as soon as there is room for it.
  void Post(TimeNs now);
  // After the transport has worked: keeps the sum's end back from the completions.
  void HandleCompletions(std::vector<transport::Completion>& completions);
  // What is to be answered, until there is nothing.
  std::optional<LaneAnswered> Next();

 private:
  static constexpr std::uint32_t kMembers = 2;
  static constexpr std::size_t kCount = 16;

  Status Judge(const transport::Completion& completion) const;

  std::uint8_t lane_;
  Way way_;
  transport::Transport& transport_;
  boost::circular_buffer<RequestToken> asked_;
  std::size_t covered_count_ = 0;   // of those: asked before the present sum was posted
  std::size_t answered_count_ = 0;  // and may be answered now, with `status_`
  Status status_;
  alignas(64) std::array<std::array<std::int32_t, kCount>, kMembers> memory_{};
};

}  // namespace headrace::service
