#include "service/dispatch/job/wire_plan.h"

#include <algorithm>
#include <span>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

struct Piece {
  transport::Run run;
  std::uint32_t tensor = 0;
};

// What all elements of a transfer have in common.
struct WireType {
  DType dtype = DType::kFloat32;
  Codec codec = Codec::kNone;
  std::uint32_t matrix = 0;  // the tensor that crosses as two factors, alone
  std::uint64_t rows = 0;    // and its rows
  std::size_t number = 0;    // among the layout's matrices

  friend bool operator==(const WireType&, const WireType&) = default;
};

WireType TypeOf(const plan::Plan& plan, const Layout& layout, const plan::TensorRange& range) {
  HR_CHECK(range.tensor < layout.tensors.size(), range.tensor);
  const LayoutTensor& tensor = layout.tensors[range.tensor];
  const Codec codec = plan::CodecOf(plan, range.tensor);
  if (codec.kind != Codec::kPowerSgd) return {.dtype = tensor.dtype, .codec = codec};
  const bool is_whole = range.offset_bytes == 0 && range.bytes >= tensor.Bytes();
  if (!is_whole || !tensor.Fits(codec)) return {.dtype = tensor.dtype};
  const auto before = std::span(layout.tensors).first(range.tensor);
  const auto is_matrix = [](const LayoutTensor& each) { return each.rows != 0; };
  return {.dtype = tensor.dtype,
          .codec = codec,
          .matrix = range.tensor,
          .rows = tensor.rows,
          .number = static_cast<std::size_t>(std::ranges::count_if(before, is_matrix))};
}

// The types of a block's gradients, in the order in which they come first.
std::vector<WireType> TypesOf(const plan::Plan& plan, const plan::PlannedBlock& block,
                              const Layout& layout) {
  std::vector<WireType> types;
  for (const plan::TensorRange& range : block.ranges) {
    const WireType type = TypeOf(plan, layout, range);
    if (std::ranges::find(types, type) == types.end()) types.push_back(type);
  }
  return types;
}

std::vector<Piece> PiecesOf(const plan::Plan& plan, const plan::PlannedBlock& block,
                            const Layout& layout, const WireType& type) {
  std::vector<Piece> pieces;
  pieces.reserve(block.ranges.size());
  for (const plan::TensorRange& range : block.ranges) {
    const LayoutTensor& tensor = layout.tensors[range.tensor];
    if (TypeOf(plan, layout, range) != type) continue;
    HR_CHECK(range.offset_bytes < tensor.Bytes(), range.tensor, range.offset_bytes);
    const std::uint64_t bytes = std::min(range.bytes, tensor.Bytes() - range.offset_bytes);
    pieces.push_back(
        {.run = {.offset = tensor.offset + range.offset_bytes, .count = bytes / SizeOf(type.dtype)},
         .tensor = range.tensor});
  }
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.run.offset; });
  return pieces;
}

void Append(WireBlock& block, const Piece& piece) {
  const std::uint64_t element = SizeOf(block.dtype);
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

// The pieces of one type in a block of the plan, as one wire block or as many as it takes.
void AppendPieces(std::vector<WireBlock>& blocks, const WireBlock& empty,
                  const std::vector<Piece>& pieces, std::size_t runs_max) {
  blocks.push_back(empty);
  for (const Piece& piece : pieces) {
    Append(blocks.back(), piece);
    if (blocks.back().runs.size() <= runs_max) continue;
    // The piece began a run too many: it becomes the first of a block of its own.
    WireBlock& full = blocks.back();
    full.runs.pop_back();
    full.tensors.pop_back();
    full.count -= piece.run.count;
    HR_CHECK(!full.runs.empty(), full.plan_block);
    blocks.push_back(empty);
    Append(blocks.back(), piece);
  }
}

}  // namespace

WirePlan MakeWirePlan(std::shared_ptr<const plan::Plan> plan, std::uint64_t hash,
                      const Layout& layout, std::size_t runs_max) {
  WirePlan wire{.plan = std::move(plan), .hash = hash, .blocks = {}, .blocks_of = {}};
  for (std::uint32_t index = 0; index < wire.plan->blocks.size(); ++index) {
    const plan::PlannedBlock& block = wire.plan->blocks[index];
    for (const WireType& type : TypesOf(*wire.plan, block, layout)) {
      const WireBlock empty{.plan_block = index,
                            .kind = block.kind,
                            .dtype = type.dtype,
                            .codec = type.codec,
                            .rows = type.rows,
                            .matrix = type.number,
                            .runs = {},
                            .tensors = {}};
      AppendPieces(wire.blocks, empty, PiecesOf(*wire.plan, block, layout, type), runs_max);
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
