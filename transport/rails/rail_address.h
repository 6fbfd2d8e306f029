// The bytes by which other nodes reach a wire of several rails: the addresses of its rails, in
// their order, and an id of the whole.
//
//   offset  size  field
//        0     8  "HRRAILS" and the version 1
//        8     8  the id: random, one life of one wire
//       16     1  rails, 1 to kWireRailsMax
//       17     -  of each rail: 4 bytes of size, then its address
//
// Numbers are little-endian. Like every address it comes over the control connection; an invalid
// one is refused, and each rail checks its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::transport {

inline constexpr std::size_t kWireRailsMax = 4;  // of one wire, its own included

struct RailAddress {
  std::uint64_t wire_id = 0;
  std::vector<std::string> rails;
};

std::string EncodeRails(const RailAddress& address);
// kUnavailable, with what is wrong, for everything that EncodeRails did not write.
Result<RailAddress> DecodeRails(std::string_view bytes);

}  // namespace headrace::transport
