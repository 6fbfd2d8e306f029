#include "service/cluster/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/cluster/planning_inputs.h"
#include "service/plan/canonical.h"
#include "service/plan/workload.h"

namespace headrace::service {
namespace {

Error Corrupt(const std::string& what) { return Error(Code::kCorrupt, what); }

}  // namespace

std::vector<PlanPiece> CutPlan(std::uint32_t version, std::string_view text) {
  HR_CHECK(!text.empty() && text.size() <= kPlanTextMax, text.size());
  std::vector<PlanPiece> pieces;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kPlanPieceMax);
    text.remove_prefix(piece.size());
    pieces.push_back({.job = 0,
                      .version = version,
                      .index = static_cast<std::uint32_t>(pieces.size()),
                      .last = text.empty(),
                      .text = std::make_shared<const std::string>(piece)});
  }
  return pieces;
}

Status CheckPlan(const plan::Plan& plan, const Layout& layout, bool halves) {
  if (!halves && plan::HasHalves(plan)) {
    return Corrupt(fmt::format(
        "plan {} takes all-reduces apart, which servers and GPUs' lanes do not", plan.version));
  }
  for (const plan::CodecRun& run : plan.codecs) {
    if (run.end() > layout.tensors.size()) {
      return Corrupt(fmt::format("plan {} compresses tensor {} of {}", plan.version, run.end() - 1,
                                 layout.tensors.size()));
    }
  }
  if (!plan.codecs.empty() && plan::HasHalves(plan)) {
    return Corrupt(
        fmt::format("plan {} compresses gradients and takes all-reduces apart: "
                    "encodings are of whole sums",
                    plan.version));
  }
  return plan::CheckCoverage(plan, plan::MakeWorkload(MergeTimes("", layout, {})));
}

Result<std::shared_ptr<const plan::Plan>> PlanReassembly::Add(const PlanPiece& piece,
                                                              const Layout& layout, bool halves) {
  std::string text = std::exchange(text_, {});
  if (piece.index == 0) {
    text.clear();
    version_ = piece.version;
    pieces_ = 0;
  }
  const std::size_t size = piece.text == nullptr ? 0 : piece.text->size();
  if (piece.version != version_ || piece.index != pieces_) {
    return Corrupt(fmt::format("piece {} of plan {} came where piece {} of plan {} was due",
                               piece.index, piece.version, pieces_, version_));
  }
  if (size == 0 || size > kPlanTextMax - text.size()) {
    return Corrupt(fmt::format("plan {} has an empty piece or more than {} bytes", piece.version,
                               kPlanTextMax));
  }
  text += *piece.text;
  ++pieces_;
  if (!piece.last) {
    text_ = std::move(text);
    return std::shared_ptr<const plan::Plan>();
  }
  version_ = pieces_ = 0;
  Result<plan::Plan> plan = plan::ParseCanonical(text);
  if (!plan) return Corrupt(plan.error().text());
  if (plan->version != piece.version) {
    return Corrupt(fmt::format("plan {} came as plan {}", plan->version, piece.version));
  }
  if (const Status covers = CheckPlan(*plan, layout, halves); !covers) {
    return Corrupt(covers.error().text());
  }
  return std::make_shared<const plan::Plan>(std::move(plan).value());
}

}  // namespace headrace::service
