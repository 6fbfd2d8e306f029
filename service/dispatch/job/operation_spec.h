// What a rank asked for by one record, once the record is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ipc/base/codecs.h"
#include "ipc/base/collective.h"
#include "ipc/base/ids.h"
#include "ipc/records.h"
#include "transport/transport.h"

namespace headrace::service {

// A checked record of one rank. `data` points into the session's mapping and has room for `count`
// elements; null for a barrier.
struct OperationSpec {
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
  bool has_parts = false;  // there is a parts table
  // The parts of an all_gather or reduce_scatter differ in size; its parts table has them.
  bool uneven = false;
  // Where the reduction of the rank's own part goes; null: to where the part is.
  std::byte* result = nullptr;
  // The iteration of gradients that has to have ended before a barrier begins; 0: none has to.
  std::uint64_t follows = 0;
  // The ranks of a send or receive. `source` is ipc::kAnyRank in a receive from any rank.
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  std::uint64_t tag = 0;
  Codec codec{};  // in which an all_reduce that a rank posted crosses between nodes
  // How many ranks the average of a plan's block is divided by; 0: all.
  std::uint32_t contributors = 0;
  // The half of a plan's all-reduce that this block carries out, or all of it.
  Collective half = Collective::kAllReduce;

  std::uint64_t Bytes() const { return count * SizeOf(dtype); }
  bool OnGpu() const { return device != transport::kHost; }
  // Whether another rank's record asks for the same thing, or, of a send, for what it sends.
  bool Matches(const OperationSpec& other) const;
};

// What a parts table sends and receives, each from the first element to behind the last.
struct PartExtents {
  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    bool empty() const { return begin == end; }
    bool Overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
    void Add(std::uint64_t offset, std::uint64_t count);
  };
  Extent sent;
  Extent received;
};
PartExtents ExtentsOf(std::span<const ipc::PartRow> rows);

// Whom a send or receive is of, as far as that is known.
struct PairSides {
  std::uint32_t source = 0;  // ipc::kAnyRank: in a receive from any rank
  std::uint32_t target = 0;
  std::uint64_t tag = 0;

  friend bool operator==(const PairSides&, const PairSides&) = default;
};

// Where a pair's other side is.
enum class Away : std::uint8_t {
  kNo,     // here, or not known
  kGoes,   // a send of this node to a rank of another one
  kComes,  // the send is another node's
};

// The collectives whose memory is one part for each rank.
bool IsParted(Collective kind);

// The collectives after which every rank has the same.
bool IsShared(Collective kind);

// "all_reduce of 1024 float32 (sum)", "send of 4 float32 from rank 0 to rank 1, tag 7", for errors
// and logs.
std::string Describe(const OperationSpec& spec);
// "in host memory", "on GPU 1".
std::string DescribeMemory(std::int8_t device);

}  // namespace headrace::service
