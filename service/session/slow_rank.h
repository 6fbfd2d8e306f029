// The messages about slow ranks between the dispatch actors of a job's nodes: values of steering,
// 64 bits each. Plain values, checked before they are read.
#pragma once

#include <cstdint>

#include "ipc/base/result.h"
#include "ipc/base/steering.h"

namespace headrace::service {

// What a job asks for: a rank that is slow for so long is named, and evicted, too, where so many
// ranks are left.
struct SlowBound {
  std::uint32_t seconds = 0;      // 0: nobody looks
  std::uint32_t least_world = 0;  // 0: nobody is evicted

  std::uint64_t Value() const { return std::uint64_t{least_world} << 32 | seconds; }
  static SlowBound Of(std::uint64_t value) {
    return {.seconds = static_cast<std::uint32_t>(value),
            .least_world = static_cast<std::uint32_t>(value >> 32)};
  }
  friend bool operator==(const SlowBound&, const SlowBound&) = default;
};

// How much of the last while a rank has not waited for the service, but had its own to do.
struct OwnShare {
  static constexpr std::uint32_t kWhole = 1000;

  std::uint32_t rank = 0;
  std::uint32_t share = 0;  // of kWhole

  std::uint64_t Value() const { return std::uint64_t{share} << 32 | rank; }
  static OwnShare Of(std::uint64_t value) {
    return {.rank = static_cast<std::uint32_t>(value),
            .share = static_cast<std::uint32_t>(value >> 32)};
  }
  friend bool operator==(const OwnShare&, const OwnShare&) = default;
};

// A rank that is slow, or is so no longer.
struct SlowRank {
  static constexpr std::uint32_t kPercentMax = 100'000;

  std::uint32_t rank = 0;
  bool evicted = false;
  bool stalled = false;  // it does nothing at all; `percent` is the greatest then
  // Its time in percent of the median of the others; 0: it keeps up again.
  std::uint32_t percent = 0;
  std::uint32_t seconds = 0;  // for which it has been slow

  std::uint64_t Value() const {
    return std::uint64_t{seconds} << 40 | std::uint64_t{percent} << 16 |
           std::uint64_t{stalled ? 1U : 0U} << 9 | std::uint64_t{evicted ? 1U : 0U} << 8 | rank;
  }
  static SlowRank Of(std::uint64_t value) {
    return {.rank = static_cast<std::uint32_t>(value & 0xff),
            .evicted = (value >> 8 & 1) != 0,
            .stalled = (value >> 9 & 1) != 0,
            .percent = static_cast<std::uint32_t>(value >> 16 & 0xffffff),
            .seconds = static_cast<std::uint32_t>(value >> 40)};
  }
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

// What a rank does, for as long as the bound or longer: no iteration ends while one stands still,
// so its node has to say it.
struct RankState {
  enum class Kind : std::uint8_t {
    kActive = 0,   // it posts, or its operations end
    kWaits = 1,    // it has posted what others have not
    kStalled = 2,  // it has done nothing, and waits for nothing that it has posted
  };

  std::uint32_t rank = 0;
  Kind kind = Kind::kActive;
  std::uint32_t seconds = 0;  // for which it is so; 0: it is active

  std::uint64_t Value() const {
    return std::uint64_t{seconds} << 32 | std::uint64_t{static_cast<std::uint8_t>(kind)} << 8 |
           rank;
  }
  static RankState Of(std::uint64_t value) {
    return {.rank = static_cast<std::uint32_t>(value & 0xff),
            .kind = static_cast<Kind>(value >> 8 & 0xff),
            .seconds = static_cast<std::uint32_t>(value >> 32)};
  }
  friend bool operator==(const RankState&, const RankState&) = default;
};

// From outside: a client or another service. The error says what is possible.
Status CheckSlowBound(const SlowBound& bound);
// A value that a node said in steering of one of these four kinds.
Status CheckSlowSteering(SteeringKind kind, std::uint64_t value);

}  // namespace headrace::service
