#include "transport/exchange/server_sums.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ipc/base/check.h"
#include "transport/codec/seed.h"
#include "transport/exchange/encoded.h"
#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

PieceFault Senseless(std::size_t message) {
  return {.message = message, .what = "what cannot be decoded"};
}

// The elements of a piece that lie one behind the other from `values` on.
EncodedRange InOnePiece(const CollectiveSpec& spec, std::uint64_t count, float* values) {
  return {.codec = spec.codec,
          .walk = RunWalk(DType::kFloat32, count, {}, 0),
          .residual_walk = {},
          .range = {.begin = 0, .count = count},
          .memory = reinterpret_cast<std::byte*>(values)};
}

}  // namespace

void ServerSums::MakeRoom(std::uint64_t count) {
  if (sum_.size() >= count) return;
  sum_.resize(count);
  residual_.resize(count);
}

void ServerSums::NoteEncoded(const ServedPiece& piece, bool keeps) {
  constexpr std::uint64_t kNotedMax = 64;
  CodecUse sample;
  const std::uint64_t count = keeps ? std::min(kNotedMax, piece.range.count) : 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!std::isfinite(sum_[i]) || !std::isfinite(residual_[i])) continue;
    sample.sum_squares += double{sum_[i]} * double{sum_[i]};
    sample.residual_squares += double{residual_[i]} * double{residual_[i]};
  }
  residuals_.OnEncoded(piece.group, piece.range.count * sizeof(float), sample.sum_squares,
                       sample.residual_squares);
}

// Nodes that mean other gradients, or draw another chance, do not mean the same sum.
std::optional<PieceFault> ServerSums::ReadTails(const ServedPiece& piece) {
  bool first = true;
  tail_ = {};
  bodies_.clear();
  const std::size_t plain = piece.spec.SizeOfElements(piece.range.count);
  for (std::size_t i = 0; i < piece.messages.size(); ++i) {
    const std::span<const std::byte> message = piece.messages[i];
    if (!piece.spec.encoded() && message.size() == plain) {
      bodies_.push_back(message);
      continue;
    }
    const std::optional<MessageTail> tail = ReadTail(message, piece.range.count);
    if (!tail) return Senseless(i);
    const std::size_t size = message.size() - tail->Size();
    const bool fits =
        piece.spec.lossless() ? size <= plain && (size > 0) == (plain > 0) : size == plain;
    if (!fits) return Senseless(i);
    bodies_.push_back(message.first(size));
    const bool same_runs = tail_.runs_count == 0 || tail->runs_count == 0 ||
                           std::ranges::equal(tail_.Runs(), tail->Runs());
    if (!first && (tail->seed != tail_.seed || !same_runs)) {
      return PieceFault{.message = i, .what = "elements that lie elsewhere in its gradients"};
    }
    if (first || tail_.runs_count == 0) tail_ = *tail;
    first = false;
  }
  return std::nullopt;
}

void ServerSums::AddKept(const ServedPiece& piece, float* values) {
  if (!residuals_.KeepsAny(piece.group, tail_.Runs())) return;
  residuals_.Load(piece.group, tail_.Runs(), residual_.data());
  for (std::uint64_t i = 0; i < piece.range.count; ++i) {
    if (residual_[i] != 0) values[i] += residual_[i];
  }
  residuals_.Forget(piece.group, tail_.Runs());
}

std::optional<PieceFault> ServerSums::AddLeftOut(const ServedPiece& piece) {
  HR_CHECK(!piece.spec.encoded() && !piece.messages.empty(), piece.messages.size());
  MakeRoom(piece.range.count);
  if (auto fault = ReadTails(piece)) return fault;
  AddKept(piece, reinterpret_cast<float*>(piece.messages[0].data()));
  return std::nullopt;
}

std::optional<PieceFault> ServerSums::Sum(const ServedPiece& piece, LosslessGain& gain,
                                          double s_per_byte, std::size_t& size) {
  HR_CHECK(piece.spec.encoded() && !piece.spec.factored() && !piece.messages.empty(),
           piece.messages.size());
  MakeRoom(piece.range.count);
  if (auto fault = ReadTails(piece)) return fault;
  if (piece.spec.lossless()) return SumLossless(piece, gain, s_per_byte, size);
  size = piece.spec.SizeOfElements(piece.range.count);
  return SumBlocks(piece);
}

// Divided where the result is decoded, by each node.
std::optional<PieceFault> ServerSums::SumBlocks(const ServedPiece& piece) {
  const CollectiveSpec& spec = piece.spec;
  const bool keeps = tail_.runs_count > 0;
  const bool by_chance = spec.codec.kind == Codec::kRandomK;
  std::byte* const out = piece.messages[0].data();
  std::array<const std::byte*, kNodesMax> inputs{};
  for (std::size_t i = 0; i < bodies_.size(); ++i) inputs[i] = bodies_[i].data();
  const std::span<const std::byte* const> encoded(inputs.data(), bodies_.size());
  if (by_chance && !(keeps && residuals_.KeepsAny(piece.group, tail_.Runs()))) {
    ReduceInto(DType::kFloat32, Reduction::kSum, encoded, {&out, 1}, 0,
               bodies_[0].size() / sizeof(float));
    return std::nullopt;
  }
  const std::uint64_t first_block = piece.range.begin / kCodecBlock;
  const CodecSeed theirs{.seed = MixedSeed(tail_.seed, 0), .first_block = first_block};
  const CodecSeed own{.seed = MixedSeed(tail_.seed, by_chance ? 0 : piece.self + 1),
                      .first_block = first_block};
  DecodeSum(spec.codec, encoded, piece.range.count, false, 1, sum_.data(), theirs);
  if (!keeps) {
    Encode(spec.codec, sum_.data(), nullptr, piece.range.count, out, own);
    NoteEncoded(piece, false);
    return std::nullopt;
  }
  residuals_.Load(piece.group, tail_.Runs(), residual_.data());
  Encode(spec.codec, sum_.data(), residual_.data(), piece.range.count, out, own);
  if (Status kept = residuals_.Store(piece.group, tail_.Runs(), residual_.data()); !kept) {
    return PieceFault{.message = {}, .code = kept.code(), .what = kept.error().text()};
  }
  NoteEncoded(piece, true);
  return std::nullopt;
}

std::optional<PieceFault> ServerSums::SumLossless(const ServedPiece& piece, LosslessGain& gain,
                                                  double s_per_byte, std::size_t& size) {
  const CollectiveSpec& spec = piece.spec;
  const std::uint64_t count = piece.range.count;
  const EncodedRange range = InOnePiece(spec, count, sum_.data());
  const TimeNs begin = MonotonicNow();
  const bool gets_kept = tail_.runs_count > 0 && residuals_.KeepsAny(piece.group, tail_.Runs());
  const Reduction reduction = gets_kept ? Reduction::kSum : spec.reduction;
  const auto wrong = ReduceLosslessRange(bodies_, kNowhere, reduction, spec.divisor, range);
  if (wrong) return Senseless(*wrong);
  gain.OnDecoded(MonotonicNow() - begin);
  if (gets_kept) {
    AddKept(piece, sum_.data());
    auto* const values = reinterpret_cast<std::byte*>(sum_.data());
    const std::byte* const input = values;
    ReduceInto(DType::kFloat32, spec.reduction, {&input, 1}, {&values, 1}, 0, count, spec.divisor);
  }
  std::byte* const out = piece.messages[0].data();
  if (!gain.Tries(s_per_byte)) {
    size = CopyRange(range, out);
    return std::nullopt;
  }
  const TimeNs encoding = MonotonicNow();
  size = EncodeLosslessRange(range, out);
  gain.OnEncoded(MonotonicNow() - encoding, count * sizeof(float) - size);
  return std::nullopt;
}

}  // namespace headrace::transport
