#include "tests/sim/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "transport/codec/codec.h"

namespace headrace::sim {
namespace {

constexpr std::size_t kTensorsMax = 8;
constexpr std::uint64_t kCountMax = 240;
constexpr std::uint64_t kGapMax = 3;  // elements
constexpr std::uint32_t kSegment = 2;
constexpr std::size_t kSegmentSize = 65536;
// Elements of a tensor that is large enough to be encoded.
constexpr std::uint64_t kLargeMin = 4096;
constexpr std::uint64_t kLargeMax = 4800;
// Of one that is a matrix.
constexpr std::uint64_t kRows = 64;
static_assert(kTensorsMax * (kCountMax + kGapMax) * sizeof(double) +
                  2 * (kLargeMax + kGapMax) * sizeof(float) <=
              kSegmentSize);

void Shuffle(std::vector<std::uint32_t>& order, Dice& dice) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[dice.Below(i)]);
}

// One large gradient that crosses between nodes encoded; perhaps not in the first iterations.
void Compress(service::Layout& layout, Dice& dice) {
  constexpr Codec kCodecs[] = {Codec::kBFloat16, Codec::kInt8,     Codec::kInt4,
                               Codec::kTopK,     Codec::kRandomK,  Codec::kInt8Stochastic,
                               Codec::kSign,     Codec::kLossless, Codec::kPowerSgd};
  service::LayoutTensor& tensor = layout.tensors[dice.Below(layout.tensors.size())];
  tensor.dtype = DType::kFloat32;
  tensor.count = dice.Between(kLargeMin, kLargeMax);
  if (dice.Chance(40)) {
    tensor.rows = kRows;
    tensor.count -= tensor.count % kRows;
  }
  tensor.codec = kCodecs[dice.Below(std::size(kCodecs))];
  tensor.keeps_codec = dice.Chance(50);
  if (dice.Chance(30)) layout.compress_after = dice.Between(1, 8);
}

}  // namespace

Planned PlannedOf(const service::Layout& layout, std::uint32_t number, Values values) {
  const service::LayoutTensor& tensor = layout.tensors[number];
  Planned planned{.kind = Collective::kAllReduce,
                  .dtype = tensor.dtype,
                  .reduction = layout.reduction,
                  .count = tensor.count,
                  .encoded = !tensor.keeps_codec || Loses(tensor.codec),
                  .error_bound = transport::ErrorBound(tensor.codec),
                  .value_max = LargestOf(values)};
  // People may ask for others.
  for (const Codec& codec : kSteeredCodecs) {
    if (tensor.keeps_codec) break;
    planned.error_bound = std::max(planned.error_bound, transport::ErrorBound(codec));
  }
  // What is left out of a column of a matrix is no longer than the column.
  const bool factored = !tensor.keeps_codec || tensor.codec.kind == Codec::kPowerSgd;
  if (factored && tensor.rows > 0) {
    planned.error_bound = std::sqrt(static_cast<double>(tensor.rows));
  }
  return planned;
}

Model AnyModel(Dice& dice) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
  service::Layout layout;
  const DType usual = kTypes[dice.Below(std::size(kTypes))];
  const bool is_mixed = dice.Chance(30);
  layout.reduction = dice.Chance(50) ? Reduction::kSum : Reduction::kAverage;
  const std::uint64_t count = dice.Between(1, kTensorsMax);
  for (std::uint64_t i = 0; i < count; ++i) {
    layout.tensors.push_back({.name = fmt::format("g{}", i),
                              .count = dice.Between(1, dice.Chance(40) ? 8 : kCountMax),
                              .dtype = is_mixed ? kTypes[dice.Below(std::size(kTypes))] : usual,
                              .keeps_codec = true});
  }
  if (dice.Chance(40)) Compress(layout, dice);
  std::vector<std::uint32_t> places(count);
  std::iota(places.begin(), places.end(), 0U);
  Shuffle(places, dice);
  std::uint64_t end = 0;
  for (const std::uint32_t place : places) {
    service::LayoutTensor& tensor = layout.tensors[place];
    const std::size_t element = SizeOf(tensor.dtype);
    tensor.offset = (end + element - 1) / element * element;
    end = tensor.End() + (dice.Chance(40) ? dice.Between(1, kGapMax) : 0) * element;
  }
  Model model{.layout = std::make_shared<const service::Layout>(std::move(layout)),
              .eager = dice.Chance(40)};
  if (dice.Chance(50)) model.policy = plan::kPolicies[dice.Below(std::size(plan::kPolicies))];
  return model;
}

Model Another(const Model& model) {
  Model other = model;
  if (model.policy) {
    const bool exact = *model.policy == plan::Policy::kExact;
    other.policy = exact ? plan::Policy::kWfbp : plan::Policy::kExact;
    return other;
  }
  service::Layout layout = *model.layout;
  const bool sum = layout.reduction == Reduction::kSum;
  layout.reduction = sum ? Reduction::kAverage : Reduction::kSum;
  other.layout = std::make_shared<const service::Layout>(std::move(layout));
  return other;
}

Training::Training(support::HandDrivenNode& node, CompletionChecker& checker, Rank& rank,
                   bool nonsense)
    : node_(node), checker_(checker), rank_(rank), nonsense_(nonsense), shadow_(kSegmentSize) {
  const SegmentId segment = node_.AddSegment(rank_.client(), kSegmentSize);
  HR_CHECK(segment == SegmentId{kSegment}, segment.value);
}

void Training::HandIn(const Model& model) {
  model_ = model;
  const service::Layout& layout = *model_.layout;
  for (std::uint32_t i = 0; i < layout.tensors.size(); ++i) {
    node_.AddTensor(rank_.client(), TensorId{kSlots + i},
                    {.name = layout.tensors[i].name,
                     .segment = SegmentId{kSegment},
                     .offset = layout.tensors[i].offset,
                     .count = layout.tensors[i].count,
                     .dtype = layout.tensors[i].dtype,
                     .order = i});
  }
  node_.Send(service::SetLayout{rank_.client().id(), TensorId{kSlots}, model_.layout, {}});
}

bool Training::Post(Manner manner, std::uint32_t timeout_ms, TimeNs now, Dice& dice) {
  support::ClientEnd& client = rank_.client();
  if (!has_handed_in() || !client.HasRoom()) return false;
  if (manner == Manner::kBadRecord && !open_.empty() && dice.Chance(30)) {
    PostAgain(timeout_ms, now, dice);
    return true;
  }
  if (HasPostedAll()) {
    if (!model_.eager && !open_.empty()) return false;
    BeginIteration(now, dice);
  }
  const auto found = std::find_if(order_.begin() + static_cast<std::ptrdiff_t>(next_), order_.end(),
                                  [this](std::uint32_t tensor) { return !IsOpen(tensor); });
  if (found == order_.end()) return false;
  const std::uint32_t tensor = *found;
  std::swap(*found, order_[next_++]);
  const Planned planned = PlannedOf(*model_.layout, tensor, rank_.values);
  const std::span<std::byte> memory = Memory(tensor);
  FillElements(planned, rank_.values, memory, dice);
  ipc::GradientRecord record = RecordOf(tensor, now, dice);
  record.timeout_ms = timeout_ms;
  if (manner == Manner::kBadRecord) Spoil(record, dice);
  checker_.Post(rank_.job(), GradientNumber(iteration_, tensor), client.rank(), planned,
                manner == Manner::kHonest, {memory.begin(), memory.end()});
  open_.push_back({.record = client.Post(std::bit_cast<ipc::Record>(record)),
                   .iteration = iteration_,
                   .tensor = tensor});
  return true;
}

void Training::PostAgain(std::uint32_t timeout_ms, TimeNs now, Dice& dice) {
  const Open& twin = open_[dice.Below(open_.size())];
  ipc::GradientRecord record = RecordOf(twin.tensor, now, dice);
  record.timeout_ms = timeout_ms;
  open_.push_back({.record = rank_.client().Post(std::bit_cast<ipc::Record>(record)),
                   .iteration = twin.iteration,
                   .tensor = twin.tensor,
                   .again = true});
}

void Training::BeginIteration(TimeNs now, Dice& dice) {
  ++iteration_;
  next_ = 0;
  backward_ns_ = now;
  order_.resize(model_.layout->tensors.size());
  std::iota(order_.begin(), order_.end(), 0U);
  // As backward passes do it, more or less.
  std::ranges::reverse(order_);
  if (dice.Chance(60)) Shuffle(order_, dice);
}

ipc::GradientRecord Training::RecordOf(std::uint32_t tensor, TimeNs now, Dice& dice) const {
  const service::Layout& layout = *model_.layout;
  ipc::GradientRecord record;
  record.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(layout.tensors[tensor].dtype);
  record.reduction = static_cast<std::uint8_t>(layout.reduction);
  record.flags = ipc::kRecordIsGradient;
  record.tensor = kSlots + tensor;
  record.count = layout.tensors[tensor].count;
  record.forward_ns = static_cast<std::uint32_t>(dice.Below(nonsense_ ? UINT32_MAX : 2'000'000));
  record.waited_ns = static_cast<std::uint32_t>(dice.Below(nonsense_ ? UINT32_MAX : 2'000'000));
  record.backward_ns = static_cast<std::uint64_t>(backward_ns_);
  record.posted_ns = static_cast<std::uint64_t>(now);
  if (nonsense_ && dice.Chance(50)) record.backward_ns = dice.Below(UINT64_MAX);
  if (nonsense_ && dice.Chance(50)) record.posted_ns = dice.Below(UINT64_MAX);
  return record;
}

void Training::Spoil(ipc::GradientRecord& record, Dice& dice) const {
  switch (dice.Below(5)) {
    case 0:
      ++record.count;
      return;
    case 1:
      record.tensor = kSlots - 1;
      return;
    case 2:
      record.tensor = kSlots + static_cast<std::uint32_t>(model_.layout->tensors.size());
      return;
    case 3:
      record.reduction = static_cast<std::uint8_t>(Reduction::kMax);
      return;
    default:
      record.waited_ns = ipc::kGradientTimeMax + dice.Between(1, 99);
      return;
  }
}

bool Training::HasDone(std::uint64_t iterations) const {
  if (iteration_ < iterations || (iteration_ == iterations && !HasPostedAll())) return false;
  return std::ranges::all_of(open_, [&](const Open& open) { return open.iteration > iterations; });
}

std::optional<std::string> Training::CheckEnded() {
  for (std::size_t i = 0; i < open_.size();) {
    if (!rank_.client().HasEnded(open_[i].record)) {
      ++i;
      continue;
    }
    if (auto wrong = CheckOperation(open_[i])) return wrong;
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return std::nullopt;
}

std::optional<std::string> Training::CheckOperation(const Open& open) {
  const support::ClientEnd& client = rank_.client();
  ended_.push_back({open.record, Word(open.record)});
  const ipc::Outcome outcome = client.Read(open.record);
  const std::string what =
      fmt::format("{}: gradient {} of iteration {}", rank_.Name(), open.tensor, open.iteration);
  if (open.again) {
    if (outcome.code != Code::kOk) return std::nullopt;
    return what + " was posted twice at a time and ended well";
  }
  const std::span<std::byte> memory = Memory(open.tensor);
  const std::span<const std::byte> segment = node_.ServiceMemory(client, kSegment);
  if (!segment.empty() && node_.transport().Uses(segment.subspan(
                              model_.layout->tensors[open.tensor].offset, memory.size()))) {
    return what + " has ended while the lane uses its memory";
  }
  std::ranges::copy(memory, shadow_.begin() + static_cast<std::ptrdiff_t>(
                                                  model_.layout->tensors[open.tensor].offset));
  return checker_.End(rank_.job(), GradientNumber(open.iteration, open.tensor), client.rank(),
                      outcome, {memory.begin(), memory.end()});
}

std::optional<std::string> Training::CheckAtEnd() const {
  // Later ones may have come into the slots of earlier ones.
  const std::uint64_t posted = rank_.client().posted();
  for (const Ended& ended : ended_) {
    if (ended.record + ipc::kOperationsMax <= posted || Word(ended.record) == ended.word) continue;
    return fmt::format("{}: the gradient of record {} ended twice", rank_.Name(), ended.record);
  }
  // Whoever has nothing open knows every byte.
  if (open_.empty() && !std::ranges::equal(rank_.client().Memory(kSegment), shadow_)) {
    return rank_.Name() + ": memory between gradients, or of one that had ended, was written to";
  }
  return std::nullopt;
}

bool Training::IsOpen(std::uint32_t tensor) const {
  return std::ranges::any_of(open_, [tensor](const Open& open) { return open.tensor == tensor; });
}

std::span<std::byte> Training::Memory(std::uint32_t tensor) const {
  const service::LayoutTensor& place = model_.layout->tensors[tensor];
  return rank_.client().Memory(kSegment).subspan(place.offset, place.Bytes());
}

std::uint64_t Training::Word(std::uint64_t record) const {
  return rank_.client().layout().words[record % ipc::kOperationsMax].load();
}

}  // namespace headrace::sim
