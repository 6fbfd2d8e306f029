#include "service/dispatch/job/wire_plan.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

struct Piece {
  transport::Run run;
  std::uint32_t tensor = 0;
};

std::vector<Piece> PiecesOf(const plan::Block& block, const Layout& layout) {
  const std::uint64_t element = SizeOf(layout.dtype);
  std::vector<Piece> pieces;
  pieces.reserve(block.parts.size());
  for (const plan::Part& part : block.parts) {
    HR_CHECK(part.tensor < layout.tensors.size(), part.tensor);
    pieces.push_back({.run = {.offset = layout.tensors[part.tensor].offset + part.offset_bytes,
                              .count = part.bytes / element},
                      .tensor = part.tensor});
  }
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.run.offset; });
  return pieces;
}

void Append(WireBlock& block, const Piece& piece, std::uint64_t element) {
  block.count += piece.run.count;
  const bool neighbour =
      !block.runs.empty() &&
      block.runs.back().offset + block.runs.back().count * element == piece.run.offset;
  if (neighbour) {
    block.runs.back().count += piece.run.count;
  } else {
    block.runs.push_back(piece.run);
  }
  block.tensors.push_back(piece.tensor);
}

void Settle(std::vector<std::uint32_t>& tensors) {
  std::ranges::sort(tensors);
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
}

}  // namespace

WirePlan MakeWirePlan(std::shared_ptr<const plan::Plan> plan, std::uint64_t hash,
                      const Layout& layout, std::size_t runs_max) {
  WirePlan wire{.plan = std::move(plan), .hash = hash, .blocks = {}, .blocks_of = {}};
  const std::uint64_t element = SizeOf(layout.dtype);
  for (std::uint32_t index = 0; index < wire.plan->blocks.size(); ++index) {
    wire.blocks.push_back({.plan_block = index, .runs = {}, .tensors = {}});
    for (const Piece& piece : PiecesOf(wire.plan->blocks[index], layout)) {
      Append(wire.blocks.back(), piece, element);
      if (wire.blocks.back().runs.size() <= runs_max) continue;
      // The piece began a run too many: it becomes the first of a block of its own.
      WireBlock& full = wire.blocks.back();
      full.runs.pop_back();
      full.tensors.pop_back();
      full.count -= piece.run.count;
      HR_CHECK(!full.runs.empty(), index);
      wire.blocks.push_back({.plan_block = index, .runs = {}, .tensors = {}});
      Append(wire.blocks.back(), piece, element);
    }
  }
  wire.blocks_of.resize(layout.tensors.size(), 0);
  for (WireBlock& block : wire.blocks) {
    Settle(block.tensors);
    for (const std::uint32_t tensor : block.tensors) ++wire.blocks_of[tensor];
  }
  return wire;
}

}  // namespace headrace::service
