// Layouts of gradients that ranks register: checks of one layout, the first difference of two, and
// the layouts that the ranks of one node have registered so far. Plain values.
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

// A job with ranks on this node, as found by its name.
struct KnownJob {
  JobId id;
  std::uint32_t uid = 0;  // its owner
  std::uint32_t world_size = 1;
  bool adaptive = false;  // the optimizer of a rank here is
};

// Checks that the layout has 1 to kLayoutTensorsMax tensors that are not empty and do not overlap,
// the lowest at offset 0, and is summed or averaged. The error names the tensor.
Status CheckLayout(const Layout& layout);
// Whether a job can have had so many iterations in earlier epochs.
Status CheckIterationsBefore(std::uint64_t iterations);

// Where the gradients of a layout lie, and how those on GPUs reach other nodes.
enum class GradientsPlace : std::uint8_t { kHost, kGpusThroughHost, kGpusByNccl };

// Gives each tensor its codecs: `each`, by tensor, where that names some, else `choice`, unless it
// is small (kCompressedBytesMin) or of other elements than float32. kInvalidArgument where a codec
// is named for other elements, or for GPUs' memory that it cannot compress.
Status SetCodecs(Layout& layout, const CodecChoice& choice,
                 std::span<const std::optional<CodecChoice>> each, GradientsPlace place);

// What of the choice the tensor takes, which may be none: others cross as they are.
CodecChoice FittingChoice(const LayoutTensor& tensor, const CodecChoice& choice);

// Gives each tensor its rows: one number for each, 0 where it is no matrix, or nothing at all.
// kInvalidArgument where a tensor's elements are no such rows.
Status SetRows(Layout& layout, std::span<const std::uint64_t> rows);

// 64-bit FNV-1a of the names in order, each behind its size as 8 bytes, lowest first. Differs for
// ranks that have gradients of equal size in different orders.
std::uint64_t HashNames(const Layout& layout);

// kMismatch with the first difference; tensor names are compared by Layout::names_hash. `whose` and
// `whose_other` are the owners of the layouts: "rank 3 on node b".
Status CompareLayouts(const Layout& one, const std::string& whose, const Layout& other,
                      const std::string& whose_other);

// "tensor 4 (conv1.weight)"
std::string DescribeTensor(const Layout& layout, std::size_t index);

// The layouts of the ranks of one node. All are equal, because a rank with another one is refused,
// so one is kept.
class NodeLayouts {
 public:
  // An error if the rank may not register this. Without a policy the leader's is used.
  Status Check(std::uint32_t rank, const Layout& layout, std::optional<plan::Policy> policy) const;
  // After a successful Check.
  void Add(std::uint32_t rank, std::shared_ptr<const Layout> layout,
           std::optional<plan::Policy> policy);

  std::size_t ranks_count() const { return ranks_.size(); }
  // Null until a rank has registered one. Shared with dispatch, which only reads it.
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  // Whether the optimizer of one of them is adaptive.
  bool adaptive() const { return adaptive_; }
  // The policy of the ranks that set one.
  std::optional<plan::Policy> policy() const { return policy_; }

 private:
  std::set<std::uint32_t> ranks_;
  std::shared_ptr<const Layout> layout_;
  std::uint32_t first_rank_ = 0;  // that handed it in first, or with the most iterations before
  std::optional<plan::Policy> policy_;
  std::uint32_t policy_rank_ = 0;  // that said it first
  bool adaptive_ = false;
};

}  // namespace headrace::service
