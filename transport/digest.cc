#include "transport/digest.h"

// Compiled in here, so that no program needs the library at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/check.h"
#include "transport/runs.h"

namespace headrace::transport {

std::uint64_t DigestPiece(const Transfer& transfer, std::uint32_t member, std::uint64_t begin,
                          std::uint64_t end) {
  const std::byte* const memory = transfer.members[member];
  const std::size_t element_size = SizeOf(transfer.dtype);
  if (transfer.runs.empty()) {
    return XXH3_64bits_withSeed(memory + begin * element_size, (end - begin) * element_size, begin);
  }
  XXH3_state_t state;
  XXH3_INITSTATE(&state);  // as the library asks of states that lie on the stack
  HR_CHECK(XXH3_64bits_reset_withSeed(&state, begin) == XXH_OK, begin);
  ForEachStretch(RunWalk(transfer), begin, end, [&](auto, std::size_t at, std::uint64_t count) {
    XXH3_64bits_update(&state, memory + at, count * element_size);
  });
  return XXH3_64bits_digest(&state);
}

void ReportDigests(std::span<const std::uint64_t> digests, Completion& completion) {
  completion.digest = digests.front();
  for (std::size_t member = 0; member < digests.size(); ++member) {
    completion.differing |= std::uint64_t{digests[member] != completion.digest} << member;
  }
}

}  // namespace headrace::transport
