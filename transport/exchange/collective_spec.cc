#include "transport/exchange/collective_spec.h"

namespace headrace::transport {
namespace {

CollectiveSpec Normal(CollectiveSpec spec) {
  const CollectiveSpec plain{};
  if (!Reduces(spec.kind)) spec.reduction = plain.reduction;
  if (spec.reduction != Reduction::kAverage) spec.divisor = plain.divisor;
  if (!HasRoot(spec.kind)) {
    spec.root = plain.root;
    spec.root_rank = plain.root_rank;
  }
  if (spec.kind != Collective::kAllReduce || spec.encoded()) spec.asked_codec = plain.asked_codec;
  if (!spec.factored()) spec.rows = plain.rows;
  if (spec.factored() || !MayHaveResidual(spec)) spec.place = plain.place;
  if (spec.kind == Collective::kBarrier) {
    spec.dtype = plain.dtype;
    spec.count = plain.count;
    spec.block_count = plain.block_count;
    spec.operation_count = plain.operation_count;
  }
  return spec;
}

}  // namespace

CollectiveSpec SpecOf(const Transfer& transfer) {
  return Normal({.kind = transfer.kind,
                 .dtype = transfer.dtype,
                 .reduction = transfer.reduction,
                 .root = transfer.root,
                 .root_rank = transfer.root_rank,
                 .count = transfer.count,
                 .block_count = transfer.block_count,
                 .operation_count = transfer.operation_count,
                 .divisor = transfer.divisor != 0 ? transfer.divisor : transfer.members_count,
                 .codec = transfer.codec,
                 .asked_codec = transfer.asked_codec,
                 .rows = transfer.rows,
                 .place = transfer.place});
}

std::optional<CollectiveSpec> SpecOf(const MessageHeader& header, std::uint32_t members_count) {
  const auto kind = static_cast<Collective>(header.kind);
  if (!RunsBetweenNodes(kind) || !IsDType(header.dtype) || !IsReduction(header.reduction) ||
      !IsCodec(header.codec, header.codec_parameter) ||
      !IsCodec(header.asked_codec, header.asked_codec_parameter)) {
    return std::nullopt;
  }
  const CollectiveSpec spec{
      .kind = kind,
      .dtype = static_cast<DType>(header.dtype),
      .reduction = static_cast<Reduction>(header.reduction),
      .root = header.root,
      .root_rank = header.root_rank,
      .count = header.count,
      .block_count = header.block_count,
      .operation_count = header.operation_count,
      .divisor = header.divisor,
      .codec = {static_cast<Codec::Kind>(header.codec), header.codec_parameter},
      .asked_codec = {static_cast<Codec::Kind>(header.asked_codec), header.asked_codec_parameter},
      .rows = header.rows,
      .place = header.place};
  if (spec.count > kTransferBytesMax / SizeOf(spec.dtype)) return std::nullopt;
  if (spec.place > kTransferBytesMax / sizeof(float)) return std::nullopt;
  if (spec.root >= members_count) return std::nullopt;
  if (spec.reduction == Reduction::kAverage && spec.divisor == 0) return std::nullopt;
  if (spec.encoded() && !MayBeEncoded(spec)) return std::nullopt;
  if (spec != Normal(spec)) return std::nullopt;
  return spec;
}

void WriteSpec(const CollectiveSpec& spec, MessageHeader& header) {
  header.kind = static_cast<std::uint8_t>(spec.kind);
  header.dtype = static_cast<std::uint8_t>(spec.dtype);
  header.reduction = static_cast<std::uint8_t>(spec.reduction);
  header.root = spec.root;
  header.root_rank = static_cast<std::uint16_t>(spec.root_rank);
  header.count = spec.count;
  header.block_count = spec.block_count;
  header.operation_count = spec.operation_count;
  header.divisor = spec.divisor;
  header.codec = spec.codec.kind;
  header.codec_parameter = spec.codec.parameter;
  header.asked_codec = spec.asked_codec.kind;
  header.asked_codec_parameter = spec.asked_codec.parameter;
  header.rows = spec.rows;
  header.place = spec.place;
}

std::string Describe(const CollectiveSpec& spec) {
  std::string text(Name(spec.kind));
  if (spec.kind == Collective::kBarrier) return text;
  text += " of " + std::to_string(spec.count) + " " + std::string(Name(spec.dtype));
  if (Reduces(spec.kind)) {
    text += " (" + std::string(Name(spec.reduction));
    if (spec.divisor != 0) text += " over " + std::to_string(spec.divisor);
    text += ")";
  }
  if (spec.encoded()) text += " as " + Name(spec.codec);
  if (spec.asked_codec != Codec::kNone)
    text += " as it is (asked for: " + Name(spec.asked_codec) + ")";
  if (spec.factored()) text += " of " + std::to_string(spec.rows) + " rows";
  if (spec.block_count > spec.count || spec.operation_count > spec.block_count) {
    text += ", of a block of " + std::to_string(spec.block_count) + " in an operation of " +
            std::to_string(spec.operation_count);
  }
  if (spec.place > 0) text += ", from element " + std::to_string(spec.place - 1) + " of all on";
  if (HasRoot(spec.kind)) {
    text +=
        ", root " + std::to_string(spec.root) + " (rank " + std::to_string(spec.root_rank) + ")";
  }
  return text;
}

}  // namespace headrace::transport
