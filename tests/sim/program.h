// What the ranks of a simulated job post: the same operations in the same order, drawn from a seed.
#pragma once

#include <cstdint>
#include <span>

#include "ipc/base/collective.h"
#include "ipc/base/ids.h"
#include "ipc/records.h"
#include "tests/sim/dice.h"
#include "transport/transport.h"

namespace headrace::sim {

inline constexpr std::size_t kSlotSize = 2048;  // no operation moves more

struct Planned {
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;
  std::uint64_t count = 0;

  std::size_t Bytes() const { return count * SizeOf(dtype); }
};

// Operation `sequence` of the job. A function of its arguments alone.
Planned PlanOf(std::uint64_t seed, JobId job, std::uint32_t world_size, std::uint64_t sequence);
// ... of a job whose ranks are on several nodes: no averages of integers, which are refused there,
// and no products whose last bit depends on the order in which nodes multiply.
Planned PlanBetweenNodes(std::uint64_t seed, JobId job, std::uint32_t world_size,
                         std::uint64_t sequence);

// The plan as a record, not yet saying where the memory is.
ipc::Record RecordOf(const Planned& planned);

// Changes the record so that it does not match the plan any more, but may be carried out.
void Disagree(ipc::Record& record, std::uint32_t world_size, Dice& dice);
// Changes the record so that it cannot be carried out.
void Spoil(ipc::Record& record, std::uint32_t world_size, Dice& dice);

// Elements whose sums and products stay finite.
void FillElements(DType dtype, std::span<std::byte> memory, Dice& dice);

}  // namespace headrace::sim
