#include "service/plan/workload.h"

#include "ipc/base/check.h"

namespace headrace::plan {

Workload MakeWorkload(const Profile& profile) {
  HR_CHECK(!profile.tensors.empty());
  const std::size_t count = profile.tensors.size();
  Workload work;
  work.element_bytes = SizeOf(profile.dtype);
  work.bytes.resize(count);
  work.prefix_bytes.resize(count);
  work.release_s.resize(count);
  work.tail_s.resize(count);
  work.rows.resize(count);
  std::uint64_t bytes = 0;
  for (std::size_t l = 0; l < count; ++l) {
    work.bytes[l] = profile.tensors[l].elements * work.element_bytes;
    bytes += work.bytes[l];
    work.prefix_bytes[l] = bytes;
    work.rows[l] = profile.tensors[l].rows;
  }
  double released = 0;
  double tail = 0;
  for (std::size_t l = count; l-- > 0;) {
    released += profile.tensors[l].backward_s;
    tail += profile.tensors[l].forward_s;
    work.release_s[l] = released;
    work.tail_s[l] = tail;
  }
  return work;
}

}  // namespace headrace::plan
