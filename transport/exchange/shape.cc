#include "transport/exchange/shape.h"

namespace headrace::transport {
namespace {

constexpr bool HasRoot(Collective kind) {
  return kind == Collective::kReduce || kind == Collective::kBroadcast;
}

Shape Normal(Shape shape) {
  const Shape plain{};
  if (!Reduces(shape.kind)) shape.reduction = plain.reduction;
  if (shape.reduction != Reduction::kAverage) shape.divisor = plain.divisor;
  if (!HasRoot(shape.kind)) {
    shape.root = plain.root;
    shape.root_rank = plain.root_rank;
  }
  if (shape.kind == Collective::kBarrier) {
    shape.dtype = plain.dtype;
    shape.count = plain.count;
  }
  return shape;
}

}  // namespace

Shape ShapeOf(const Transfer& transfer) {
  return Normal({.kind = transfer.kind,
                 .dtype = transfer.dtype,
                 .reduction = transfer.reduction,
                 .root = transfer.root,
                 .root_rank = transfer.root_rank,
                 .count = transfer.count,
                 .divisor = transfer.divisor != 0 ? transfer.divisor : transfer.members_count});
}

std::optional<Shape> ShapeOf(const MessageHeader& header, std::uint32_t members_count) {
  const auto kind = static_cast<Collective>(header.kind);
  if (!RunsBetweenNodes(kind) || !IsDType(header.dtype) || !IsReduction(header.reduction)) {
    return std::nullopt;
  }
  const Shape shape{.kind = kind,
                    .dtype = static_cast<DType>(header.dtype),
                    .reduction = static_cast<Reduction>(header.reduction),
                    .root = header.root,
                    .root_rank = header.root_rank,
                    .count = header.count,
                    .divisor = header.divisor};
  if (shape.count > kTransferBytesMax / SizeOf(shape.dtype)) return std::nullopt;
  if (shape.root >= members_count) return std::nullopt;
  if (shape.reduction == Reduction::kAverage && shape.divisor == 0) return std::nullopt;
  if (shape != Normal(shape)) return std::nullopt;
  return shape;
}

void WriteShape(const Shape& shape, MessageHeader& header) {
  header.kind = static_cast<std::uint8_t>(shape.kind);
  header.dtype = static_cast<std::uint8_t>(shape.dtype);
  header.reduction = static_cast<std::uint8_t>(shape.reduction);
  header.root = shape.root;
  header.root_rank = shape.root_rank;
  header.count = shape.count;
  header.divisor = shape.divisor;
}

std::string Describe(const Shape& shape) {
  std::string text(Name(shape.kind));
  if (shape.kind == Collective::kBarrier) return text;
  text += " of " + std::to_string(shape.count) + " " + std::string(Name(shape.dtype));
  if (Reduces(shape.kind)) {
    text += " (" + std::string(Name(shape.reduction));
    if (shape.divisor != 0) text += " over " + std::to_string(shape.divisor);
    text += ")";
  }
  if (HasRoot(shape.kind)) {
    text +=
        ", root " + std::to_string(shape.root) + " (rank " + std::to_string(shape.root_rank) + ")";
  }
  return text;
}

}  // namespace headrace::transport
