#include "service/plan/choose_codecs.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/codec_error.h"
#include "service/plan/coded.h"
#include "service/plan/exact.h"
#include "service/plan/forecast.h"

namespace headrace::plan {
namespace {

// Borders that are tried to begin with, of forward order and of sizes, before the best one is
// narrowed down.
constexpr std::size_t kBordersTried = 8;

const Stage* StageBetweenNodes(const Route& route) {
  const auto found =
      std::ranges::find_if(route.stages, [](const Stage& stage) { return !stage.coded.empty(); });
  return found == route.stages.end() ? nullptr : &*found;
}

// The stage alone, as one straight lane: what an assignment comes to there decides, and is quick to
// compute.
Route LaneBetweenNodes(const Stage& stage) {
  const CostPiece plain = StageCost(stage).pieces.back();
  Route route = AllReduceRoute(Affine(plain.startup_s, plain.s_per_byte));
  route.halves = false;
  Stage& lane = route.stages.front();
  lane.offsets_bytes = stage.offsets_bytes;
  for (const CodedLines& coded : stage.coded) {
    if (stage.rails.size() == 1 || coded.cost.codec.kind == Codec::kPowerSgd) {
      lane.coded.push_back({coded.cost, {coded.lines.front()}});
      continue;
    }
    Stage as = stage;
    as.coded.clear();
    for (std::size_t rail = 0; rail < as.rails.size(); ++rail) {
      const CostPiece last = coded.lines[rail].pieces.back();
      as.rails[rail].line = Affine(last.startup_s, last.s_per_byte);
    }
    const CostPiece last = StageCost(as).pieces.back();
    lane.coded.push_back({coded.cost, {Affine(last.startup_s, last.s_per_byte)}});
  }
  return route;
}

// The codec in which all these tensors together are fastest; none where no allowed codec has a
// cost.
Codec FastestOf(const Stage& lane, const AllowedCodecs& allowed, Workload work,
                std::span<const TensorRange> tensors) {
  Codec fastest;
  double fastest_s = 0;
  std::uint64_t bytes = 0;
  for (const TensorRange& tensor : tensors) bytes += tensor.bytes;
  for (const Codec& codec : allowed.List()) {
    if (FindCoded(lane, codec) == nullptr) continue;
    work.codecs.assign(work.size(), codec);
    const double seconds = BlockSeconds(lane, work, Collective::kAllReduce, tensors, bytes);
    if (fastest != Codec::kNone && seconds >= fastest_s) continue;
    fastest = codec;
    fastest_s = seconds;
  }
  return fastest;
}

class Chooser {
 public:
  Chooser(Policy policy, const Workload& work, Route lane, std::span<const Codec> must,
          std::span<const Codec> may)
      // Where the forward pass waits for the last block, blocks of `exact` say nothing.
      : policy_(TraitsOf(policy).barrier ? policy : Policy::kExact),
        work_(work),
        lane_(std::move(lane)),
        must_(must),
        may_(may) {}

  std::vector<Codec> Choose(std::span<const CodecChoice> choices) {
    std::vector<Codec> codecs = ChooseBorders();
    Soften(choices, codecs);
    return codecs;
  }

 private:
  std::vector<Codec> ChooseBorders() {
    // Chooses among all, as long as the first `count` in forward order have at least `bytes`.
    std::size_t count = work_.size();
    std::uint64_t bytes = 0;
    double best_s = std::min(Seconds(0, 0), Seconds(count, 0));
    std::vector<std::size_t> borders;
    for (std::size_t i = 1; i < kBordersTried; ++i) {
      borders.push_back(std::max<std::size_t>(1, work_.size() * i / kBordersTried));
      best_s = std::min(best_s, Seconds(borders.back(), 0));
    }
    enough_s_ = best_s * (1 + kCodecSlack);
    if (Seconds(0, 0) <= enough_s_) return With(0, 0);
    // The fewest in forward order, then the fewest of those by size. More is faster, or nearly;
    // what is not is found out at the end.
    count = Least(1, work_.size(), [&](std::size_t each) { return Seconds(each, 0) <= enough_s_; });
    std::vector<std::uint64_t> sizes = work_.bytes;
    std::ranges::sort(sizes, std::greater<>());
    const std::size_t sizes_count = Least(1, sizes.size(), [&](std::size_t each) {
      return Seconds(count, sizes[each - 1]) <= enough_s_;
    });
    bytes = sizes[sizes_count - 1];
    if (Seconds(count, bytes) <= enough_s_) return With(count, bytes);
    return FastestBorder(borders);
  }

  // Gives gradients that have the same choice, where they are encoded, the codec that errs least of
  // those with which an iteration is still fast enough.
  void Soften(std::span<const CodecChoice> choices, std::vector<Codec>& codecs) const {
    std::vector<CodecChoice> done;
    for (std::size_t l = 0; l < codecs.size(); ++l) {
      const bool free = !choices[l].allowed.empty() && codecs[l] != Codec::kNone;
      if (!free || std::ranges::find(done, choices[l]) != done.end()) continue;
      done.push_back(choices[l]);
      for (const Codec& milder : MilderThan(codecs[l], choices[l].allowed)) {
        std::vector<Codec> softened = codecs;
        for (std::size_t other = l; other < codecs.size(); ++other) {
          if (choices[other] == choices[l] && softened[other] == codecs[l])
            softened[other] = milder;
        }
        if (SecondsOf(softened) > enough_s_) continue;
        codecs = std::move(softened);
        break;
      }
    }
  }

  // The allowed ones of which costs are known, and that err less; least first.
  std::vector<Codec> MilderThan(const Codec& codec, const AllowedCodecs& allowed) const {
    std::vector<Codec> milder;
    for (const Codec& each : allowed.List()) {
      const bool known = FindCoded(lane_.stages.front(), each) != nullptr;
      if (known && ErrorBound(each) < ErrorBound(codec)) milder.push_back(each);
    }
    std::ranges::stable_sort(milder, {}, [](const Codec& each) { return ErrorBound(each); });
    return milder;
  }

  // The least of first..last for which `holds`, where what holds for one holds for more.
  template <typename Holds>
  static std::size_t Least(std::size_t first, std::size_t last, Holds holds) {
    while (first < last) {
      const std::size_t middle = first + (last - first) / 2;
      if (holds(middle)) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return last;
  }

  std::vector<Codec> With(std::size_t count, std::uint64_t bytes) const {
    std::vector<Codec> codecs(work_.size());
    for (std::size_t l = 0; l < codecs.size(); ++l) {
      const bool encoded = l < count && work_.bytes[l] >= bytes;
      codecs[l] = encoded ? may_[l] : must_.empty() ? Codec() : must_[l];
    }
    return codecs;
  }

  // An assignment that was tried before costs what it did then.
  double Seconds(std::size_t count, std::uint64_t bytes) {
    if (count == 0) bytes = 0;
    const auto known = seconds_.find({count, bytes});
    if (known != seconds_.end()) return known->second;
    return seconds_[{count, bytes}] = SecondsOf(With(count, bytes));
  }

  double SecondsOf(std::vector<Codec> codecs) const {
    Workload work = work_;
    work.codecs = std::move(codecs);
    const DraftOptions options{.bound_s = work.backward_s() + work.forward_s()};
    return MakeTimetable(work, lane_, MakeDraft(policy_, work, lane_, options)).iteration_s;
  }

  std::vector<Codec> FastestBorder(const std::vector<std::size_t>& borders) {
    std::size_t best = work_.size();
    double best_s = Seconds(best, 0);
    for (const std::size_t border : borders) {
      const double seconds = Seconds(border, 0);
      if (seconds >= best_s) continue;
      best = border;
      best_s = seconds;
    }
    return With(best, 0);
  }

  Policy policy_;
  const Workload& work_;
  Route lane_;
  std::span<const Codec> must_;
  std::span<const Codec> may_;
  double enough_s_ = 0;  // an iteration is fast enough
  std::map<std::pair<std::size_t, std::uint64_t>, double> seconds_;
};

}  // namespace

bool LeaveCodecsToPlan(std::span<const CodecChoice> choices) {
  return std::ranges::any_of(choices,
                             [](const CodecChoice& choice) { return !choice.allowed.empty(); });
}

std::vector<Codec> CodecsAsTheyMust(std::span<const CodecChoice> choices) {
  std::vector<Codec> codecs;
  for (const CodecChoice& choice : choices) codecs.push_back(choice.codec);
  const bool all_plain =
      std::ranges::all_of(codecs, [](const Codec& codec) { return codec == Codec::kNone; });
  return all_plain ? std::vector<Codec>() : codecs;
}

std::vector<Codec> CodecsAsTheyMay(const Workload& work, const Route& route,
                                   std::span<const CodecChoice> choices) {
  HR_CHECK(choices.size() == work.size(), choices.size(), work.size());
  std::vector<Codec> codecs;
  for (const CodecChoice& choice : choices) codecs.push_back(choice.codec);
  const Stage* const stage = StageBetweenNodes(route);
  if (stage == nullptr) return codecs;
  const Route lane = LaneBetweenNodes(*stage);
  for (std::size_t l = 0; l < choices.size(); ++l) {
    if (choices[l].allowed.empty() || codecs[l] != Codec::kNone) continue;
    const auto is_alike = [&](std::size_t other) { return choices[other] == choices[l]; };
    std::vector<TensorRange> tensors;
    for (auto other = static_cast<std::uint32_t>(l); other < choices.size(); ++other) {
      if (is_alike(other)) tensors.push_back({other, 0, work.bytes[other]});
    }
    const Codec fastest = FastestOf(lane.stages.front(), choices[l].allowed, work, tensors);
    for (std::size_t other = l; other < choices.size(); ++other) {
      if (is_alike(other)) codecs[other] = fastest;
    }
  }
  return codecs;
}

std::vector<Codec> ChooseCodecs(Policy policy, const Workload& work, const Route& route,
                                std::span<const Codec> must, std::span<const Codec> may,
                                std::span<const CodecChoice> choices) {
  HR_CHECK(work.codecs.empty() && may.size() == work.size(), may.size(), work.size());
  HR_CHECK(choices.size() == work.size(), choices.size(), work.size());
  const Stage* const stage = StageBetweenNodes(route);
  if (stage == nullptr) return {must.begin(), must.end()};
  return Chooser(policy, work, LaneBetweenNodes(*stage), must, may).Choose(choices);
}

double QuickSeconds(Policy policy, const Workload& work, const Route& route,
                    const Recording& recording, const PolicySettings& settings) {
  const Stage* const stage = StageBetweenNodes(route);
  HR_CHECK(stage != nullptr, route.stages.size());
  Route lane = LaneBetweenNodes(*stage);
  lane.halves = route.halves && work.codecs.empty();
  const double bound_s = work.backward_s() + work.forward_s();
  Draft draft = MakeDraft(policy, work, lane, {.bound_s = bound_s, .settings = settings});
  draft.barrier = draft.barrier || settings.barrier;
  if (recording.iterations.empty()) return MakeTimetable(work, route, draft).iteration_s;
  // As `auto` has it with recorded iterations.
  if (policy == Policy::kAuto) draft.barrier = settings.barrier;
  return ForecastOf(work, route, recording, draft).mean_s;
}

std::uint64_t CodedBytes(const Workload& work, std::span<const Codec> codecs) {
  std::uint64_t bytes = 0;
  for (std::size_t l = 0; l < codecs.size(); ++l) {
    if (codecs[l] != Codec::kNone) bytes += work.bytes[l];
  }
  return bytes;
}

CodecCost TriedCodec(const Workload& work, const Route& route, std::span<const Codec> must,
                     std::span<const Codec> codecs) {
  const Stage* const stage = StageBetweenNodes(route);
  if (stage == nullptr) return {};
  CodecCost most;
  std::uint64_t most_bytes = 0;
  for (const CodedLines& coded : stage->coded) {
    std::uint64_t bytes = 0;
    for (std::size_t l = 0; l < codecs.size(); ++l) {
      const bool forced = !must.empty() && must[l] != Codec::kNone;
      if (!forced && codecs[l] == coded.cost.codec) bytes += work.bytes[l];
    }
    if (bytes <= most_bytes) continue;
    most = coded.cost;
    most_bytes = bytes;
  }
  return most;
}

}  // namespace headrace::plan
