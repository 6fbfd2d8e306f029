// What the ranks of a simulated job post: the same operations in the same order, drawn from a seed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/ids.h"
#include "ipc/records.h"
#include "tests/sim/dice.h"
#include "transport/transport.h"

namespace headrace::sim {

inline constexpr std::size_t kSlotSize = 12288;  // no operation moves more
// Most move no more than this. Larger ones have several of the smallest pieces that there are.
inline constexpr std::size_t kSmallSize = 2048;

struct Planned {
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;
  std::uint64_t count = 0;
  // A gradient that may cross between nodes in codecs that lose: its sum is the same on all ranks,
  // and only near the reference. The largest of their errors, as a share of what is encoded, and
  // the largest value that a rank has.
  bool encoded = false;
  double error_bound = 0;
  double value_max = 0;
  std::uint32_t contributors = 0;  // by which an average is divided; 0: by all ranks
  bool uneven = false;             // of an all_gather or reduce_scatter: its parts are of any size

  bool HasParts() const { return uneven || MovesInMessages(kind); }
  std::size_t Bytes() const { return count * SizeOf(dtype); }
};

// The rows of a rank's parts table. Of uneven parts they are the same on every rank. Of a kind that
// moves in messages what is sent lies in the
// first half of the memory, what is received in the other, each in the order of the ranks.
std::vector<ipc::PartRow> PartsOf(const Planned& planned, std::uint32_t world_size,
                                  std::uint32_t rank);
// At the end of a slot there is room for the largest table.
inline constexpr std::size_t kTableOffset =
    kSlotSize - transport::kMembersMax * sizeof(ipc::PartRow);

// Operation `sequence` of the job. A function of its arguments alone.
Planned PlanOf(std::uint64_t seed, JobId job, std::uint32_t world_size, std::uint64_t sequence);
// ... of a job whose ranks are on several nodes: no averages of integers, which are refused there.
Planned PlanBetweenNodes(std::uint64_t seed, JobId job, std::uint32_t world_size,
                         std::uint64_t sequence);

// The plan as a record, not yet saying where the memory is.
ipc::Record RecordOf(const Planned& planned);

// Changes the record so that it does not match the plan any more, but may be carried out.
void Disagree(ipc::Record& record, std::uint32_t world_size, Dice& dice);
// Changes the record so that it cannot be carried out.
void Spoil(ipc::Record& record, std::uint32_t world_size, Dice& dice);

// What ranks put into their memory. All sums and products of a few stay finite.
enum class Values : std::uint8_t {
  kExact,  // eighths, so that sums are the same in any order
  kRough,  // of many sizes and with all their digits: the last bit of a sum tells the order
};
constexpr double LargestOf(Values values) { return values == Values::kExact ? 4 : 64; }
void FillElements(const Planned& planned, Values values, std::span<std::byte> memory, Dice& dice);

}  // namespace headrace::sim
