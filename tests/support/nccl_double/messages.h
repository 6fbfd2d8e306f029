// What ranks and their hub say to each other, over a unix socket: a header, and bytes behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/fd.h"
#include "transport/nccl/nccl_abi.h"

namespace headrace::nccl_double {

using transport::NcclReduction;
using transport::NcclResult;
using transport::NcclType;

enum class Says : std::uint32_t {
  kHello = 1,    // a rank has come
  kCall = 2,     // a rank has come to a collective
  kGoodbye = 3,  // a rank finalizes
  kAnswer = 4,   // the hub, once all ranks have said the same
};

struct Header {
  Says says = Says::kHello;
  NcclResult result = NcclResult::kSuccess;  // of an answer
  std::uint64_t size = 0;                    // bytes behind it
  // Fields of a hello.
  std::uint32_t rank = 0;
  std::uint32_t ranks_count = 0;
  std::uint64_t host = 0;
  std::array<std::uint8_t, 16> gpu{};
  // Fields of a call; equal on all ranks, or nothing happens.
  Collective kind = Collective::kAllReduce;
  NcclType type = NcclType::kUInt8;
  NcclReduction reduction = 0;  // a scaled sum has the number of the first own one
  std::uint64_t count = 0;
  std::uint32_t root = 0;
  std::array<std::byte, 8> scalar{};

  bool IsSameCall(const Header& other) const {
    return says == other.says && kind == other.kind && type == other.type &&
           reduction == other.reduction && count == other.count && root == other.root &&
           scalar == other.scalar;
  }
};

struct Message {
  Header header;
  std::vector<std::byte> bytes;
};

// Abstract: goes with the process that listens.
std::optional<UniqueFd> Listen(const std::string& name);
std::optional<UniqueFd> Connect(const std::string& name);

// Both wait; false once the other end is gone, or this one was shut down.
bool Say(int socket, Header header, std::span<const std::byte> bytes);
bool Hear(int socket, Message& message);

DType DTypeOf(NcclType type);

// What each rank gets of a call that all have come to; inputs by rank.
std::vector<std::vector<std::byte>> CarryOut(const Header& call,
                                             std::vector<std::vector<std::byte>> inputs);

}  // namespace headrace::nccl_double
