// The layouts that the ranks of a job hand in: whether one makes sense, where two differ, and what
// the ranks of one node have handed in so far. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/plan/plan.h"
#include "service/session/layout.h"

namespace headrace::service {

// A job with ranks on this node, as its name finds it.
struct KnownJob {
  JobId id;
  std::uint32_t uid = 0;  // its owner
  std::uint32_t world_size = 1;
};

// Whether gradients can move by it: 1 to kLayoutTensorsMax tensors with elements in each, none over
// another, the lowest at 0, sum or average. The error names the tensor.
Status CheckLayout(const Layout& layout);

// Gives each tensor its codecs: `each`, by tensor, where that names some, else `choice`, unless it
// is small (kCompressedBytesMin) or of other elements than float32. kInvalidArgument where a codec
// is named for other elements, or for `on_gpu`, from where nothing is compressed.
Status SetCodecs(Layout& layout, const CodecChoice& choice,
                 std::span<const std::optional<CodecChoice>> each, bool on_gpu);

// FNV-1a, 64 bits, over the names in their order, each behind its size in 8 bytes, lowest first.
// Two ranks whose gradients of equal size stand in another order differ in it.
std::uint64_t HashNames(const Layout& layout);

// kMismatch with the first difference; names of tensors count by Layout::names_hash. `whose` and
// `whose_other` name who handed them in: "rank 3 on node b".
Status CompareLayouts(const Layout& one, const std::string& whose, const Layout& other,
                      const std::string& whose_other);

// "tensor 4 (conv1.weight)"
std::string DescribeTensor(const Layout& layout, std::size_t index);

// What the ranks of one node have handed in. They agree with one another, since a rank that does
// not is refused; so one layout stands for all.
class NodeLayouts {
 public:
  // Why the rank may not hand this in. No policy: as the leader has it.
  Status Check(std::uint32_t rank, const Layout& layout, std::optional<plan::Policy> policy) const;
  // After a successful Check.
  void Add(std::uint32_t rank, std::shared_ptr<const Layout> layout,
           std::optional<plan::Policy> policy);

  std::size_t ranks_count() const { return ranks_.size(); }
  // Null while there is none. Shared with dispatch, which only reads it.
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  // What those that say something say.
  std::optional<plan::Policy> policy() const { return policy_; }

 private:
  std::set<std::uint32_t> ranks_;
  std::shared_ptr<const Layout> layout_;
  std::uint32_t first_rank_ = 0;  // that handed it in
  std::optional<plan::Policy> policy_;
  std::uint32_t policy_rank_ = 0;  // that said it first
};

}  // namespace headrace::service
