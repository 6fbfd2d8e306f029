// What a collective does, on bytes: in the order of ranks, one element at a time.
#include <cstring>

#include "tests/support/loopback/reference.h"
#include "tests/support/nccl_double/messages.h"

namespace headrace::nccl_double {
namespace {

using Bytes = std::vector<std::byte>;

template <typename Element, typename Scale>
void ScaleElements(Bytes& bytes, Scale scale) {
  for (std::size_t at = 0; at + sizeof(Element) <= bytes.size(); at += sizeof(Element)) {
    Element element;
    std::memcpy(&element, &bytes[at], sizeof element);
    element = scale(element);
    std::memcpy(&bytes[at], &element, sizeof element);
  }
}

template <typename Element>
Element Scalar(const Header& call) {
  Element scalar;
  std::memcpy(&scalar, call.scalar.data(), sizeof scalar);
  return scalar;
}

void Scale(const Header& call, Bytes& bytes) {
  if (call.type == NcclType::kFloat32) {
    ScaleElements<float>(bytes, [&](float each) { return each * Scalar<float>(call); });
  } else if (call.type == NcclType::kFloat64) {
    ScaleElements<double>(bytes, [&](double each) { return each * Scalar<double>(call); });
  } else if (call.type == NcclType::kFloat16) {
    const double by = transport::DecodeFloat16(Scalar<std::uint16_t>(call));
    ScaleElements<std::uint16_t>(bytes, [&](std::uint16_t each) {
      return transport::EncodeFloat16(transport::DecodeFloat16(each) * by);
    });
  } else if (call.type == NcclType::kBFloat16) {
    const double by = transport::DecodeBFloat16(Scalar<std::uint16_t>(call));
    ScaleElements<std::uint16_t>(bytes, [&](std::uint16_t each) {
      return transport::EncodeBFloat16(transport::DecodeBFloat16(each) * by);
    });
  }
}

Reduction ReductionOf(NcclReduction reduction) {
  switch (reduction) {
    case transport::kNcclProduct:
      return Reduction::kProduct;
    case transport::kNcclMax:
      return Reduction::kMax;
    case transport::kNcclMin:
      return Reduction::kMin;
    case transport::kNcclAverage:
      return Reduction::kAverage;
    default:
      return Reduction::kSum;
  }
}

Bytes Reduce(const Header& call, std::vector<Bytes>& inputs) {
  const DType dtype = DTypeOf(call.type);
  const std::size_t size = inputs.front().size();
  if (call.reduction >= transport::kNcclOwnReductionsFirst) {
    for (Bytes& input : inputs) Scale(call, input);
  }
  std::vector<const std::byte*> sources;
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes result(size);
  std::byte* const target = result.data();
  transport::ReferenceReduce(dtype, ReductionOf(call.reduction), sources, {&target, 1}, 0,
                             size / SizeOf(dtype), static_cast<std::uint32_t>(inputs.size()));
  return result;
}

}  // namespace

DType DTypeOf(NcclType type) {
  switch (type) {
    case NcclType::kUInt8:
      return DType::kUInt8;
    case NcclType::kInt32:
      return DType::kInt32;
    case NcclType::kInt64:
      return DType::kInt64;
    case NcclType::kFloat16:
      return DType::kFloat16;
    case NcclType::kFloat32:
      return DType::kFloat32;
    case NcclType::kFloat64:
      return DType::kFloat64;
    case NcclType::kBFloat16:
      break;
  }
  return DType::kBFloat16;
}

std::vector<Bytes> CarryOut(const Header& call, std::vector<Bytes> inputs) {
  std::vector<Bytes> outputs(inputs.size());
  if (call.kind == Collective::kAllReduce) {
    const Bytes sum = Reduce(call, inputs);
    for (Bytes& output : outputs) output = sum;
  } else if (call.kind == Collective::kReduce) {
    outputs[call.root] = Reduce(call, inputs);
  } else if (call.kind == Collective::kBroadcast) {
    for (Bytes& output : outputs) output = inputs[call.root];
  } else if (call.kind == Collective::kReduceScatter) {
    const Bytes sum = Reduce(call, inputs);
    const std::size_t part = sum.size() / inputs.size();
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(rank * part);
      outputs[rank].assign(begin, begin + static_cast<std::ptrdiff_t>(part));
    }
  } else {
    for (const Bytes& input : inputs) {
      outputs[0].insert(outputs[0].end(), input.begin(), input.end());
    }
    for (Bytes& output : outputs) output = outputs[0];
  }
  return outputs;
}

}  // namespace headrace::nccl_double
