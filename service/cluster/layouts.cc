#include "service/cluster/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/collective_text.h"
#include "ipc/profile.h"
#include "service/plan/canonical.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

Status CheckOverlaps(const Layout& layout) {
  HR_CHECK(!layout.tensors.empty());
  std::vector<std::size_t> order(layout.tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&layout](std::size_t one, std::size_t other) {
    return layout.tensors[one].offset < layout.tensors[other].offset;
  });
  if (layout.tensors[order[0]].offset != 0) {
    return Wrong(fmt::format("the lowest tensor of the layout lies at byte {}, not 0",
                             layout.tensors[order[0]].offset));
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    const LayoutTensor& below = layout.tensors[order[i - 1]];
    const std::uint64_t end = below.End();
    if (layout.tensors[order[i]].offset >= end) continue;
    return Wrong(
        fmt::format("{} begins at byte {}, before the end of {} at byte {}: gradients of "
                    "a layout do not overlap",
                    DescribeTensor(layout, order[i]), layout.tensors[order[i]].offset,
                    DescribeTensor(layout, order[i - 1]), end));
  }
  return {};
}

// Empty where the codecs can compress such gradients.
std::string WhyNotCompressed(DType dtype, GradientsPlace place) {
  if (dtype != DType::kFloat32) {
    return fmt::format("is of {}: only float32 is compressed", Name(dtype));
  }
  if (place != GradientsPlace::kGpusByNccl) return {};
  return "is on a GPU, from where NCCL takes it as it is: gpu_network = staged compresses";
}

}  // namespace

std::string DescribeTensor(const Layout& layout, std::size_t index) {
  HR_CHECK(index < layout.tensors.size(), index, layout.tensors.size());
  const std::string& name = layout.tensors[index].name;
  return name.empty() ? fmt::format("tensor {}", index)
                      : fmt::format("tensor {} ({})", index, name);
}

Status SetCodecs(Layout& layout, const CodecChoice& choice,
                 std::span<const std::optional<CodecChoice>> each, GradientsPlace place) {
  if (!each.empty() && each.size() != layout.tensors.size()) {
    return Wrong(fmt::format("{} codecs for {} tensors: one for each, or none", each.size(),
                             layout.tensors.size()));
  }
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    LayoutTensor& tensor = layout.tensors[i];
    const bool named = !each.empty() && each[i].has_value();
    const bool possible = tensor.dtype == DType::kFloat32;
    const bool worth_it = possible && tensor.Bytes() >= kCompressedBytesMin;
    const CodecChoice own = named ? *each[i] : worth_it ? choice : CodecChoice();
    tensor.codec = own.codec;
    tensor.allowed = own.allowed;
    tensor.keeps_codec = named || !worth_it || place == GradientsPlace::kGpusByNccl;
    if (own.is_none()) continue;
    if (const std::string why = WhyNotCompressed(tensor.dtype, place); !why.empty()) {
      return Wrong(fmt::format("{} is to be compressed as {}, and {}", DescribeTensor(layout, i),
                               ChoiceName(own), why));
    }
  }
  return {};
}

CodecChoice FittingChoice(const LayoutTensor& tensor, const CodecChoice& choice) {
  if (choice.allowed.empty()) return tensor.Fits(choice.codec) ? choice : CodecChoice();
  AllowedCodecs fitting;
  for (const Codec& codec : choice.allowed.List()) {
    if (tensor.Fits(codec)) fitting.Add(codec);
  }
  return fitting.empty() ? CodecChoice() : CodecChoice(fitting);
}

Status SetRows(Layout& layout, std::span<const std::uint64_t> rows) {
  if (rows.empty()) return {};
  if (rows.size() != layout.tensors.size()) {
    return Wrong(fmt::format("the rows of {} of {} tensors: of each, or of none", rows.size(),
                             layout.tensors.size()));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    LayoutTensor& tensor = layout.tensors[i];
    if (rows[i] != 0 && tensor.count % rows[i] != 0) {
      return Wrong(fmt::format("{} has {} elements, which are not {} rows",
                               DescribeTensor(layout, i), tensor.count, rows[i]));
    }
    tensor.rows = rows[i];
  }
  return {};
}

std::uint64_t HashNames(const Layout& layout) {
  std::string text;
  for (const LayoutTensor& tensor : layout.tensors) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      text += static_cast<char>(std::uint64_t{tensor.name.size()} >> shift);
    }
    text += tensor.name;
  }
  return plan::HashOf(text);
}

Status CheckIterationsBefore(std::uint64_t iterations) {
  if (iterations <= kIterationsBeforeMax) return {};
  return Wrong(fmt::format("{} iterations of earlier epochs: 0 to {} are possible", iterations,
                           kIterationsBeforeMax));
}

Status CheckLayout(const Layout& layout) {
  if (layout.reduction != Reduction::kSum && layout.reduction != Reduction::kAverage) {
    return Wrong(fmt::format("reduction {}: gradients of a layout are summed or averaged",
                             static_cast<unsigned>(layout.reduction)));
  }
  if (Status status = CheckIterationsBefore(layout.iterations_before); !status) return status;
  if (layout.tensors.empty() || layout.tensors.size() > kLayoutTensorsMax) {
    return Wrong(fmt::format("a layout of {} tensors: 1 to {} are possible", layout.tensors.size(),
                             kLayoutTensorsMax));
  }
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const LayoutTensor& tensor = layout.tensors[i];
    if (!IsDType(static_cast<std::uint8_t>(tensor.dtype))) {
      return Wrong(fmt::format("{}: {}", DescribeTensor(layout, i),
                               UnknownDTypeText(static_cast<unsigned>(tensor.dtype))));
    }
    if (tensor.count == 0 || tensor.count > plan::kElementsMax - elements ||
        tensor.offset > plan::kElementsMax * SizeOf(DType::kFloat64)) {
      return Wrong(
          fmt::format("{} has {} elements at byte {}: more than none, and less than 2^48 "
                      "in all, are possible",
                      DescribeTensor(layout, i), tensor.count, tensor.offset));
    }
    elements += tensor.count;
  }
  return CheckOverlaps(layout);
}

Status CompareLayouts(const Layout& one, const std::string& whose, const Layout& other,
                      const std::string& whose_other) {
  const auto differ = [&](const std::string& how) {
    return Error(Code::kMismatch,
                 fmt::format("the layouts of {} and {} differ: {}; all ranks of a job hand in the "
                             "same gradients in the same order",
                             whose, whose_other, how));
  };
  if (one.reduction != other.reduction) {
    return differ(fmt::format("{} and {}", Name(one.reduction), Name(other.reduction)));
  }
  if (one.compress_after != other.compress_after) {
    return differ(fmt::format("compressed after {} and after {} iterations", one.compress_after,
                              other.compress_after));
  }
  const std::size_t both = std::min(one.tensors.size(), other.tensors.size());
  for (std::size_t i = 0; i < both; ++i) {
    const LayoutTensor& left = one.tensors[i];
    const LayoutTensor& right = other.tensors[i];
    if (left.dtype != right.dtype) {
      return differ(fmt::format("{} is of {} and {}", DescribeTensor(one, i), Name(left.dtype),
                                Name(right.dtype)));
    }
    if (left.Choice() != right.Choice()) {
      return differ(fmt::format("{} is compressed as {} and as {}", DescribeTensor(one, i),
                                ChoiceName(left.Choice()), ChoiceName(right.Choice())));
    }
    if (left.rows != right.rows) {
      return differ(
          fmt::format("{} has {} and {} rows", DescribeTensor(one, i), left.rows, right.rows));
    }
    if (left.count == right.count && left.offset == right.offset) continue;
    return differ(fmt::format("{} has {} elements at byte {} and {} at byte {}",
                              DescribeTensor(one, i), left.count, left.offset, right.count,
                              right.offset));
  }
  if (one.tensors.size() != other.tensors.size()) {
    return differ(fmt::format("{} and {} tensors", one.tensors.size(), other.tensors.size()));
  }
  if (one.names_hash == other.names_hash) return {};
  for (std::size_t i = 0; i < both; ++i) {
    if (one.tensors[i].name == other.tensors[i].name) continue;
    return differ(fmt::format("tensor {} is \"{}\" and \"{}\"", i, one.tensors[i].name,
                              other.tensors[i].name));
  }
  return differ("the names of two tensors, beyond what is shown of them");
}

Status NodeLayouts::Check(std::uint32_t rank, const Layout& layout,
                          std::optional<plan::Policy> policy) const {
  if (ranks_.contains(rank)) {
    return Error(Code::kAlreadyExists, fmt::format("rank {} has handed in a layout", rank));
  }
  if (layout_ != nullptr) {
    if (Status status = CompareLayouts(*layout_, fmt::format("rank {}", first_rank_), layout,
                                       fmt::format("rank {}", rank));
        !status) {
      return status;
    }
  }
  if (policy_ && policy && *policy_ != *policy) {
    return Error(Code::kMismatch,
                 fmt::format("rank {} asks for the policy {} and rank {} for {}: ranks that name "
                             "one name the same",
                             policy_rank_, Name(*policy_), rank, Name(*policy)));
  }
  return {};
}

void NodeLayouts::Add(std::uint32_t rank, std::shared_ptr<const Layout> layout,
                      std::optional<plan::Policy> policy) {
  HR_CHECK(layout != nullptr && ranks_.size() < transport::kMembersMax, rank);
  const bool is_new = ranks_.insert(rank).second;
  HR_CHECK(is_new, rank);
  adaptive_ = adaptive_ || layout->adaptive;
  if (layout_ == nullptr) {
    layout_ = std::move(layout);
    first_rank_ = rank;
  } else if (layout->iterations_before > layout_->iterations_before) {
    layout_ = std::move(layout);  // equal, but for that
    first_rank_ = rank;
  }
  if (!policy_ && policy) {
    policy_ = policy;
    policy_rank_ = rank;
  }
}

}  // namespace headrace::service
