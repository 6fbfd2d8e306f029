// The bytes by which other nodes reach a wire: UCX's address in an envelope of ours.
//
//   offset  size  field
//        0     8  "HRUCX" and the version 1, zeros after it
//        8     8  the wire's id: random, one life of one wire
//       16     8  sum over the settings that both ends must have alike
//       24     4  size of UCX's address
//       28     n  UCX's address
//     28+n     8  FNV-1a of all bytes before
//
// Numbers are little-endian. The checksum guards against garbage, not against malice: UCX trusts
// what it unpacks, so addresses come over the control connection from nodes that proved who they
// are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/base/result.h"

namespace headrace::transport {

inline constexpr std::size_t kUcxAddressSizeMax = 16 << 10;

struct WireAddress {
  std::uint64_t wire_id = 0;
  std::uint64_t settings_sum = 0;
  std::string ucx_address;
};

// FNV-1a.
std::uint64_t ByteSum(std::string_view bytes);

std::string EncodeAddress(const WireAddress& address);
// kUnavailable, with what is wrong, for everything that EncodeAddress did not write.
Result<WireAddress> DecodeAddress(std::string_view bytes);

}  // namespace headrace::transport
