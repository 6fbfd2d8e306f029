#include "service/plan/coded.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/matrix.h"

namespace headrace::plan {
namespace {

bool IsFactored(const Codec& codec) { return codec.kind == Codec::kPowerSgd; }

// What crosses as one transfer.
struct CodecBytes {
  Codec codec;
  std::uint64_t bytes = 0;
  double factor_bytes = 0;  // of a matrix that crosses as factors
  std::size_t matrix = 0;   // its number among the matrices of the workload
  TensorRange last{};       // of its ranges
};

std::size_t MatrixNumber(const Workload& work, std::uint32_t tensor) {
  const auto before = std::span(work.rows).first(std::min<std::size_t>(tensor, work.rows.size()));
  return before.size() - static_cast<std::size_t>(std::ranges::count(before, 0U));
}

std::uint64_t PlaceOf(const Stage& stage, const TensorRange& range) {
  return stage.offsets_bytes[range.tensor] + range.offset_bytes;
}

// Whether there is nothing between two ranges in memory. A tensor may end within the last unit of
// the one before, which counts as whole.
bool AreNeighbours(const Stage& stage, const TensorRange& before, const TensorRange& after) {
  return PlaceOf(stage, after) <= PlaceOf(stage, before) + before.bytes;
}

// The transfers of these ranges. Each matrix is one by itself.
std::vector<CodecBytes> TransfersOf(const Stage& stage, const Workload& work,
                                    std::span<const TensorRange> ranges) {
  const bool by_runs = !stage.offsets_bytes.empty();
  HR_CHECK(!by_runs || stage.offsets_bytes.size() == work.size(), stage.offsets_bytes.size(),
           work.size());
  std::vector<TensorRange> in_memory;
  if (by_runs) {
    in_memory.assign(ranges.begin(), ranges.end());
    std::ranges::sort(in_memory, {},
                      [&](const TensorRange& range) { return PlaceOf(stage, range); });
    ranges = in_memory;
  }
  std::vector<CodecBytes> sums;
  for (const TensorRange& range : ranges) {
    const Codec codec = work.codecs.empty() ? Codec() : work.codecs[range.tensor];
    // The last one of the codec: by runs, no other can end where the range begins.
    const auto found = std::ranges::find(sums.rbegin(), sums.rend(), codec, &CodecBytes::codec);
    const bool joins = found != sums.rend() && !IsFactored(codec) &&
                       (!by_runs || AreNeighbours(stage, found->last, range));
    if (joins) {
      found->bytes += range.bytes;
      found->last = range;
      continue;
    }
    const double share = SentShare(work, range.tensor, codec);
    sums.push_back({.codec = codec,
                    .bytes = range.bytes,
                    .factor_bytes = share * static_cast<double>(range.bytes),
                    .matrix = IsFactored(codec) ? MatrixNumber(work, range.tensor) : 0,
                    .last = range});
  }
  return sums;
}

// What its rail spends on a matrix.
double FactoredSeconds(const Stage& stage, const CodedLines& coded, const CodecBytes& matrix) {
  const std::size_t rail = RailOfMatrix(matrix.matrix, stage.rails.size());
  return coded.lines[rail].Seconds(matrix.bytes) +
         stage.rails[rail].line.pieces.back().s_per_byte * matrix.factor_bytes;
}

// Whether a block may be several transfers.
bool HasTransfers(const Stage& stage, const Workload& work) {
  return !stage.offsets_bytes.empty() || (!work.codecs.empty() && !stage.coded.empty());
}

}  // namespace

// T = startup + max(W, C) + min(W, C) of one piece, where all bytes take W on the wire and C on the
// processor. A piece that is there for a few bytes costs processors what others do, since it has as
// many messages, and the wire no more than its bytes.
PiecewiseCost EncodedLine(const CostPiece& plain, const CodecCost& cost, const PieceSizes& sizes) {
  const double wire = plain.s_per_byte * cost.share;
  const double coding = cost.encode_s_per_byte + cost.decode_s_per_byte;
  const double slower = std::max(wire, coding);
  const double quicker = std::min(wire, coding);
  const double least = sizes.least_bytes / cost.share;
  const double most =
      std::max(least, std::min(sizes.most_bytes / cost.share, sizes.most_plain_bytes));
  const auto at = [](double bytes) { return static_cast<std::uint64_t>(std::ceil(bytes)); };
  const double startup_s = plain.startup_s + (coding > wire ? coding * sizes.placed_bytes : 0);
  PiecewiseCost line;
  // One piece: nothing overlaps. Then pieces of the least size, as many as are wanted, and pieces
  // of the most.
  line.pieces.push_back({0, startup_s, slower + quicker});
  line.pieces.push_back({at(least), startup_s + quicker * least, slower});
  const double grown = least * sizes.pieces_count;
  const double full = most * sizes.pieces_count;
  if (at(full) > at(grown) && at(grown) > at(least)) {
    line.pieces.push_back({at(grown), startup_s, slower + quicker / sizes.pieces_count});
  }
  if (at(full) > at(grown)) {
    line.pieces.push_back({at(full), startup_s + quicker * most, slower});
  }
  return line;
}

PiecewiseCost FactoredLine(const CostPiece& plain, const CodecCost& cost) {
  return Affine(2 * plain.startup_s, cost.encode_s_per_byte + cost.decode_s_per_byte);
}

double SentShare(const Workload& work, std::size_t tensor, const Codec& codec) {
  if (!IsFactored(codec) || tensor >= work.rows.size()) return 1;
  const std::uint64_t count = work.bytes[tensor] / sizeof(float);
  if (!HasFactors(codec, work.rows[tensor], count)) return 1;
  return static_cast<double>(FactorsCount(codec, work.rows[tensor], count)) /
         static_cast<double>(count);
}

const CodedLines* FindCoded(const Stage& stage, const Codec& codec) {
  if (codec == Codec::kNone) return nullptr;
  const auto found =
      std::ranges::find(stage.coded, codec, [](const CodedLines& each) { return each.cost.codec; });
  return found == stage.coded.end() ? nullptr : &*found;
}

// The stage as it is for blocks of one codec.
Stage InCodec(const Stage& stage, const CodedLines* coded) {
  Stage changed{.name = stage.name, .rails = stage.rails, .kind = stage.kind};
  if (coded == nullptr) return changed;
  HR_CHECK(coded->lines.size() == stage.rails.size(), coded->lines.size(), stage.rails.size());
  for (std::size_t rail = 0; rail < changed.rails.size(); ++rail) {
    // Shares of several rails are of straight lines.
    const PiecewiseCost& line = coded->lines[rail];
    const CostPiece last = line.pieces.back();
    changed.rails[rail].line =
        changed.rails.size() == 1 ? line : Affine(last.startup_s, last.s_per_byte);
  }
  return changed;
}

std::vector<double> RailSeconds(const Stage& stage, const Workload& work,
                                std::span<const TensorRange> ranges, std::uint64_t bytes) {
  std::vector<double> seconds(stage.rails.size(), -1);
  const auto add = [&](const Stage& as, std::uint64_t share_of) {
    const std::vector<std::uint64_t> shares = Shares(as, share_of, work.element_bytes);
    for (std::size_t rail = 0; rail < shares.size(); ++rail) {
      if (shares[rail] == 0) continue;
      seconds[rail] = std::max(seconds[rail], 0.0) + as.rails[rail].line.Seconds(shares[rail]);
    }
  };
  if (!HasTransfers(stage, work)) {
    add(stage, bytes);
    return seconds;
  }
  for (const CodecBytes& transfer : TransfersOf(stage, work, ranges)) {
    const bool encoded = transfer.bytes >= kEncodedBytesMin;
    const CodedLines* const coded = encoded ? FindCoded(stage, transfer.codec) : nullptr;
    if (coded != nullptr && IsFactored(transfer.codec)) {
      double& rail = seconds[RailOfMatrix(transfer.matrix, seconds.size())];
      rail = std::max(rail, 0.0) + FactoredSeconds(stage, *coded, transfer);
    } else {
      add(InCodec(stage, coded), transfer.bytes);
    }
  }
  return seconds;
}

double BlockSeconds(const Stage& stage, const Workload& work, Collective kind,
                    std::span<const TensorRange> ranges, std::uint64_t bytes) {
  if (!HasTransfers(stage, work)) {
    return StageSeconds(stage, kind, bytes, work.element_bytes);
  }
  HR_CHECK(!IsHalf(kind), bytes);  // encodings and servers are of whole sums
  if (stage.rails.size() > 1) {
    const auto seconds = RailSeconds(stage, work, ranges, bytes);
    return *std::ranges::max_element(seconds);
  }
  double seconds = 0;
  for (const CodecBytes& transfer : TransfersOf(stage, work, ranges)) {
    const CodedLines* const coded =
        transfer.bytes < kEncodedBytesMin ? nullptr : FindCoded(stage, transfer.codec);
    if (coded != nullptr && IsFactored(transfer.codec)) {
      seconds += FactoredSeconds(stage, *coded, transfer);
      continue;
    }
    seconds += (coded == nullptr ? stage.rails[0].line : coded->lines[0]).Seconds(transfer.bytes);
  }
  return seconds;
}

}  // namespace headrace::plan
