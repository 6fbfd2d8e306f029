// A message from one node to another, with the memory of both sides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "transport/transport.h"

namespace headrace::transport {

struct SentMessage {
  std::uint32_t source = 0;
  std::uint32_t target = 1;
  std::uint64_t position = 1;
  std::vector<std::uint8_t> sent;
  std::vector<std::uint8_t> got;
  bool meets = false;

  SentMessage(std::uint32_t from, std::uint32_t to, std::uint64_t at, std::size_t bytes)
      : source(from), target(to), position(at), sent(bytes), got(bytes + 1, 0xee) {
    std::iota(sent.begin(), sent.end(), static_cast<std::uint8_t>(at));
  }
  Transfer Of(bool receives, std::uint32_t members) {
    Transfer transfer{.token = position << 8 | source << 4 | target << 1 | (receives ? 1U : 0U),
                      .kind = receives ? kReceive : kSend,
                      .dtype = DType::kUInt8,
                      .root = receives ? source : target,
                      .count = sent.size(),
                      .position = position,
                      .members_count = members,
                      .meets = meets};
    auto& memory = receives ? got : sent;
    transfer.members[receives ? target : source] = reinterpret_cast<std::byte*>(memory.data());
    return transfer;
  }
  bool HasCome() const {
    return std::equal(sent.begin(), sent.end(), got.begin()) && got.back() == 0xee;
  }
};

}  // namespace headrace::transport
