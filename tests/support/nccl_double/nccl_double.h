// What tests may ask of the double of NCCL beyond what NCCL offers. The functions are exported by
// the library itself; use DoubledNccl.
//
// What it keeps of NCCL's manners: ranks form once all of them have come, in the background; calls
// are handed over in groups, in the background, and then stand in their stream; a collective is
// carried out when all ranks have come to it, and never where they come with different calls; who
// does anything with a rank that is still about something is refused; two ranks on one GPU of one
// host (NCCL_HOSTID) are refused; aborted ranks let their streams go on; ranks of one process are
// freed together, when the last of them ends; launches into a context have an order where
// NCCL_LAUNCH_ORDER_IMPLICIT says so. What it does not keep is the order of sums: inputs are summed
// in the order of ranks, in float32 where elements are smaller.
//
// The environment, in variables that begin with HEADRACE_NCCL_DOUBLE_:
//   VERSION   as ncclGetVersion tells it (22809)
//   SEED      of the delays of calls, launches and ends (1); 0: none
//   FAIL      "ncclGroupEnd:3:2,...": the third call of ncclGroupEnd returns 2. Of "hang" (no
//   number
//             behind) it is the n-th collective of this process's ranks that never begins, of
//             "error" the n-th that ends in that error, told in the background, of "block" the
//             n-th end of a group of collectives that does not return before its rank is aborted
#pragma once

#include <cstdint>

#include "transport/nccl/nccl_abi.h"

// What this process holds of the double, all zero once everything is given back.
struct NcclDoubleCounts {
  std::uint64_t ranks;
  std::uint64_t hubs;        // meeting places of ids that it made
  std::uint64_t reductions;  // ncclRedOpCreatePreMulSum
  std::uint64_t waiting;     // collectives that have begun on a rank and wait for others
  std::uint64_t hanging;     // collectives that wait for an abort
  std::uint64_t aborted;     // ranks, since the start
  std::uint64_t finished;    // ranks that were finalized and destroyed, since the start
};

#pragma GCC visibility push(default)
extern "C" {
void headrace_nccl_double_counts(NcclDoubleCounts* counts);
// As FAIL, from now on. The last ones go with `function` null.
void headrace_nccl_double_fail(const char* function, std::uint64_t nth, std::uint32_t result);
// 1: aborts do not return from now on, while GPUs heed them; 2: GPUs do not either; 0: they go on.
void headrace_nccl_double_hold_aborts(int hold);
// Whether calls that form ranks do not return from now on, until they may.
void headrace_nccl_double_hold_inits(int hold);
}
#pragma GCC visibility pop
