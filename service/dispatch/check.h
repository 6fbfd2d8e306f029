// From a record, which a stranger wrote, to an operation that may be carried out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ipc/base/collective.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "ipc/records.h"
#include "service/session/session.h"
#include "transport/transport.h"

namespace headrace::service {

inline constexpr std::uint32_t kTimeoutMsMax = 24 * 3600 * 1000;

// A checked record of one rank. `data` points into the session's mapping and has room for `count`
// elements; null for a barrier.
struct Posted {
  std::uint64_t sequence = 0;
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;
  std::uint64_t count = 0;
  std::byte* data = nullptr;
  std::int8_t device = transport::kHost;  // that `data` is on, by ordinal; kHost without elements
  TensorId tensor{ipc::kNoTensor};        // kNoTensor for a one-off range
  SegmentId segment;
  std::uint32_t timeout_ms = 0;

  std::uint64_t Bytes() const { return count * SizeOf(dtype); }
  bool OnGpu() const { return device != transport::kHost; }
  // Whether another rank's record asks for the same thing.
  bool Matches(const Posted& other) const;
};

// Checks every field against the session's segments and tensors. Errors are kInvalidArgument (the
// numbers make no sense) or kNotFound (no such tensor or segment) and name the field and its value.
Result<Posted> CheckRecord(const ipc::Record& record, const Session& session);

// The gradient's place in the session's layout. Errors as above.
Result<std::uint32_t> CheckGradient(const ipc::GradientRecord& record, const Session& session);

// "all_reduce of 1024 float32 (sum)", for errors and logs.
std::string Describe(const Posted& posted);
// "in host memory", "on GPU 1".
std::string DescribeMemory(std::int8_t device);

}  // namespace headrace::service
