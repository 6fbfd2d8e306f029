// Transfer of a plan from the leader to a node: its canonical text, cut into pieces so that no
// message delays others by its length. Pure.
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
  std::uint32_t version = 0;  // version of the plan
  std::uint32_t index = 0;    // index of the piece, from 0
  bool last = false;
  std::shared_ptr<const std::string> text;  // shared by the messages to all nodes
};

// Cuts `text`, which must not be empty, into pieces. The caller sets their job.
std::vector<PlanPiece> CutPlan(std::uint32_t version, std::string_view text);

// Checks that `plan` moves every byte of the layout's gradients exactly once, and that it splits
// all-reduces only if `halves` allows that.
Status CheckPlan(const plan::Plan& plan, const Layout& layout, bool halves);

// A node's side: joins the pieces.
class PlanReassembly {
 public:
  // Returns the plan with its last piece, null before. Returns kCorrupt and drops all pieces if a
  // piece is out of order or too long, or if the text is not a plan for this layout. `halves`:
  // plans of this job may split all-reduces.
  Result<std::shared_ptr<const plan::Plan>> Add(const PlanPiece& piece, const Layout& layout,
                                                bool halves);

 private:
  std::uint32_t version_ = 0;
  std::uint32_t pieces_ = 0;
  std::string text_;
};

}  // namespace headrace::service
