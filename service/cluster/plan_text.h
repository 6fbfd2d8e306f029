// A plan on its way from the leader to a node: its canonical text, cut into pieces, so that no
// message is so long that others wait for it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"
#include "service/plan/plan.h"
#include "service/session/layout.h"

namespace headrace::service {

inline constexpr std::size_t kPlanTextMax = std::size_t{4} << 20U;     // bytes of a plan
inline constexpr std::size_t kPlanPieceMax = std::size_t{128} << 10U;  // bytes of a piece of it

struct PlanPiece {
  std::uint32_t job = 0;
  std::uint32_t version = 0;  // of the plan
  std::uint32_t index = 0;    // of the piece, from 0
  bool last = false;
  std::shared_ptr<const std::string> text;  // shared by the messages to all nodes
};

// The pieces of `text`, which has at least one byte, for any job.
std::vector<PlanPiece> CutPlan(std::uint32_t version, std::string_view text);

// Whether `plan` moves every byte of the layout's gradients exactly once, and takes all-reduces
// apart only with `halves`.
Status CheckPlan(const plan::Plan& plan, const Layout& layout, bool halves);

// A node's side: puts pieces together.
class PlanReassembly {
 public:
  // The plan once its last piece is here, null before. What is out of order, too long, no plan, or
  // not one for this layout is kCorrupt, and what was gathered is dropped. `halves`: the job's
  // plans may take all-reduces apart.
  Result<std::shared_ptr<const plan::Plan>> Add(const PlanPiece& piece, const Layout& layout,
                                                bool halves);

 private:
  std::uint32_t version_ = 0;
  std::uint32_t pieces_ = 0;
  std::string text_;
};

}  // namespace headrace::service
