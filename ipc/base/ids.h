// Numbers that name things. Distinct types where mixing two up would be a bug.
#pragma once

#include <compare>
#include <cstdint>

namespace headrace {

template <typename Tag, typename Number>
struct Id {
  Number value = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
};

using JobId = Id<struct JobTag, std::uint32_t>;          // given by the service, never used again
using SessionId = Id<struct SessionTag, std::uint64_t>;  // given by the service, never used again
using SegmentId = Id<struct SegmentTag, std::uint32_t>;  // index within a session
using TensorId = Id<struct TensorTag, std::uint32_t>;    // index within a session

}  // namespace headrace
