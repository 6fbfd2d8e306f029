#include "tests/sim/elastic_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/support/loopback/reference.h"

namespace headrace::sim {
namespace {

constexpr std::size_t kFacts = 4;  // numbers of a rank
constexpr std::uint64_t kIsNewcomer = 1;
constexpr std::uint64_t kHasBegun = 2;
// What is handed over behind the numbers of a state, and follows from them.
constexpr std::size_t kStateBytes = 600;

bool IsHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// Halves as float32, and back.
std::vector<std::byte> Widen(DType dtype, const std::vector<std::byte>& bytes) {
  if (!IsHalf(dtype)) return bytes;
  std::vector<std::byte> wide(2 * bytes.size());
  for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, sizeof half);
    const auto value =
        static_cast<float>(dtype == DType::kFloat16 ? transport::DecodeFloat16(half)
                                                    : transport::DecodeBFloat16(half));
    std::memcpy(wide.data() + 4 * i, &value, sizeof value);
  }
  return wide;
}

template <typename Number>
void DivideEach(std::vector<std::byte>& bytes, Number divisor) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Number)) {
    Number number{};
    std::memcpy(&number, bytes.data() + at, sizeof number);
    number /= divisor;
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
}

std::vector<std::byte> Narrow(DType dtype, const std::vector<std::byte>& wide) {
  if (!IsHalf(dtype)) return wide;
  std::vector<std::byte> bytes(wide.size() / 2);
  for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
    float value = 0;
    std::memcpy(&value, wide.data() + 4 * i, sizeof value);
    const std::uint16_t half = dtype == DType::kFloat16 ? transport::EncodeFloat16(value)
                                                        : transport::EncodeBFloat16(value);
    std::memcpy(bytes.data() + 2 * i, &half, sizeof half);
  }
  return bytes;
}

}  // namespace

void ElasticTraining::Enter(ElasticSession& session) {
  session_ = &session;
  layout_iteration_ = 0;
  ended_.clear();
  meets_ = seats_ = listening_ = has_sent_ = false;
  flag_ = piece_ = 0;
  PostFacts();
  phase_ = Phase::kComparing;
}

void ElasticTraining::Leave() {
  // What it has is of as many ranks as there were.
  if (session_ != nullptr && averaged_ != applied_ + 1) {
    averaged_ = applied_ + 1;
    averaged_world_ = ContributorsCount();
  }
  if (newcomer_) {
    for (Average& each : averages_) each = {};
  }
  session_ = nullptr;
  phase_ = Phase::kOut;
  work_.clear();
  working_ = false;
  open_ = 0;
  zeros_ = 0;
  meets_ = called_ = false;
}

void ElasticTraining::OnEnd(const ElasticSession::End& end) {
  const bool is_gradient = end.number >> 63 != 0;
  if (is_gradient) --open_;
  if (!end.ok) return;
  if (!is_gradient) {
    ended_.insert(end.number);
    if (end.number == collective_) result_ = end.result;
    if (end.number == piece_) piece_result_ = end.result;
    if (end.number != flag_) return;
    std::int64_t flags[2];
    std::memcpy(flags, end.result.data(), sizeof flags);
    meets_ = flags[0] != 0;
    seats_ = flags[1] != 0;
    return;
  }
  const std::uint32_t tensor = TensorOf(end.number);
  // A rank that has given nothing has its average already.
  if ((zeros_ >> tensor & 1) != 0) return;
  averages_[tensor] = {.contributors = ContributorsNow(), .bytes = end.result};
}

bool ElasticTraining::HasAll(std::uint64_t iteration) const {
  if (applied_ >= iteration) return true;
  return applied_ + 1 == iteration &&
         std::ranges::all_of(averages_, [](const Average& each) { return each.contributors != 0; });
}

std::uint64_t ElasticTraining::Progress() const {
  return applied_ * tensors_count() +
         static_cast<std::uint64_t>(std::ranges::count_if(
             averages_, [](const Average& each) { return each.contributors != 0; }));
}

std::string ElasticTraining::Describe() const {
  return fmt::format(
      "applied {}{}, phase {}{}", applied_, newcomer_ ? " newcomer" : "", static_cast<int>(phase_),
      work_.empty() ? "" : fmt::format(" work {}", static_cast<int>(work_.front().kind)));
}

std::uint32_t ElasticTraining::ContributorsNow() const {
  std::vector<std::uint32_t> processes;
  for (const std::uint32_t rank : old_) {
    processes.push_back(world_.books.ProcessOf(session_->who().members[rank]));
  }
  return world_.books.AddContributors(std::move(processes));
}

std::optional<std::string> ElasticTraining::Step() {
  switch (phase_) {
    case Phase::kOut:
      return std::nullopt;
    case Phase::kComparing:
      return HasEnded(collective_) ? Compare() : std::nullopt;
    case Phase::kRecovering:
      return DoWork();
    case Phase::kTraining:
      return Train();
    case Phase::kClosing:
      return CloseIteration();
  }
  return std::nullopt;
}

// ---- how far ranks are --------------------------------------------------------------------------

void ElasticTraining::PostFacts() {
  const std::uint32_t world = session_->world_size();
  std::uint64_t having = 0;
  for (std::size_t tensor = 0; tensor < tensors_count(); ++tensor) {
    if (averages_[tensor].contributors != 0) having |= std::uint64_t{1} << tensor;
  }
  const std::uint64_t own[kFacts] = {applied_,
                                     (newcomer_ ? kIsNewcomer : 0) | (begun_ ? kHasBegun : 0),
                                     averaged_ == applied_ + 1 ? averaged_world_ : world, having};
  std::vector<std::byte> table(world * sizeof own);
  std::memcpy(table.data() + session_->rank() * sizeof own, own, sizeof own);
  const Planned planned{
      .kind = Collective::kAllGather, .dtype = DType::kInt64, .count = world * kFacts};
  collective_ = session_->Post(planned, ElasticSession::Place::kLarge, table);
}

std::vector<ElasticTraining::Facts> ElasticTraining::ReadFacts() const {
  std::vector<Facts> all;
  for (std::uint32_t rank = 0; rank < session_->world_size(); ++rank) {
    std::uint64_t numbers[kFacts];
    std::memcpy(numbers, result_.data() + rank * sizeof numbers, sizeof numbers);
    all.push_back({.applied = numbers[0],
                   .newcomer = (numbers[1] & kIsNewcomer) != 0,
                   .begun = (numbers[1] & kHasBegun) != 0,
                   .world = numbers[2],
                   .having = numbers[3]});
  }
  return all;
}

std::optional<std::string> ElasticTraining::Compare() {
  std::vector<Facts> all = ReadFacts();
  old_.clear();
  std::uint64_t newest = 0;
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].newcomer) continue;
    old_.push_back(rank);
    newest = std::max(newest, all[rank].applied);
  }
  work_.clear();
  working_ = false;
  phase_ = Phase::kRecovering;
  if (old_.empty()) {
    lost_all_ = true;
    return std::nullopt;
  }
  const bool level =
      std::ranges::all_of(old_, [&](std::uint32_t rank) { return all[rank].applied == newest; });
  if (!level) {
    if (auto wrong = CompareUneven(all, newest)) return wrong;
  } else if (std::ranges::any_of(old_, [&](std::uint32_t rank) { return all[rank].begun; })) {
    CompareLevel(all);
  }
  const bool has_newcomers = old_.size() < all.size();
  listening_ = level && has_newcomers && world_.listens;
  if (listening_ && newcomer_) applied_ = newest;
  if (level && has_newcomers && !listening_) {
    work_.push_back({.kind = Work::Kind::kHandOver, .root = old_[0]});
  }
  return std::nullopt;
}

// Some have applied an iteration, and others do not know yet that they may: the state of the former
// is that of all.
std::optional<std::string> ElasticTraining::CompareUneven(const std::vector<Facts>& all,
                                                          std::uint64_t newest) {
  std::uint32_t root = 0;
  for (const std::uint32_t rank : old_) {
    const Facts& facts = all[rank];
    if (facts.applied == newest) root = rank;
    if (facts.applied + 1 < newest) {
      return fmt::format("rank {} has applied {} iterations, and another one {}", rank,
                         facts.applied, newest);
    }
    if (facts.applied == newest && facts.having != 0) {
      return fmt::format("rank {} has averages of iteration {}, and others have not begun it", rank,
                         newest + 1);
    }
    if (world_.votes && facts.applied < newest && facts.having != AllTensors()) {
      return fmt::format("iteration {} was applied, and rank {} has not all averages of it", newest,
                         rank);
    }
  }
  work_.push_back({.kind = Work::Kind::kHandOver, .root = root});
  return std::nullopt;
}

void ElasticTraining::CompareLevel(std::vector<Facts>& all) {
  begun_ = true;
  DropPartial(all);
  std::uint64_t lacking = 0;
  for (std::uint32_t tensor = 0; tensor < tensors_count(); ++tensor) {
    const auto has = [&](std::uint32_t rank) { return (all[rank].having >> tensor & 1) != 0; };
    const auto root = std::ranges::find_if(old_, has);
    if (root == old_.end()) {
      lacking |= std::uint64_t{1} << tensor;
    } else if (!std::ranges::all_of(old_, has)) {
      work_.push_back({.kind = Work::Kind::kHandOn, .tensor = tensor, .root = *root});
    }
  }
  const bool has_newcomers = old_.size() < all.size();
  if (has_newcomers) {
    for (std::uint32_t tensor = 0; tensor < tensors_count(); ++tensor) {
      if ((lacking >> tensor & 1) != 0) {
        work_.push_back({.kind = Work::Kind::kSumBeside, .tensor = tensor});
      }
    }
  } else if (lacking != 0) {
    zeros_ = AllTensors() & ~lacking;
    work_.push_back({.kind = Work::Kind::kSumAgain});
  }
  if (world_.votes) work_.push_back({.kind = Work::Kind::kVote});
  work_.push_back({.kind = Work::Kind::kApply});
}

void ElasticTraining::DropPartial(std::vector<Facts>& all) {
  const std::uint64_t now = old_.size();
  std::set<std::uint64_t> worlds;
  for (const std::uint32_t rank : old_) worlds.insert(all[rank].world);
  // The last world first: only ranks that have all averages of one can have used them.
  std::uint64_t world = 0;
  std::uint64_t found = 0;
  for (const std::uint64_t each : worlds) {
    world = each;
    found = 0;
    for (const std::uint32_t rank : old_) {
      if (all[rank].world == each) found |= all[rank].having;
    }
    if (each == now || found == AllTensors()) break;
  }
  const bool none = world != now && found != AllTensors();
  for (Facts& facts : all) {
    if (facts.world != world || facts.newcomer || none) facts.having = 0;
  }
  averaged_ = applied_ + 1;
  averaged_world_ = none ? now : world;
  const std::uint64_t own = all[session_->rank()].having;
  for (std::size_t tensor = 0; tensor < tensors_count(); ++tensor) {
    if ((own >> tensor & 1) == 0) averages_[tensor] = {};
  }
}

// ---- what follows from it -----------------------------------------------------------------------

std::optional<std::string> ElasticTraining::DoWork() {
  while (true) {
    if (lost_all_) return std::nullopt;
    if (work_.empty()) {
      zeros_ = 0;
      if (!listening_) {  // a newcomer has all by now
        old_.resize(session_->world_size());
        std::iota(old_.begin(), old_.end(), 0U);
      }
      begun_ = false;
      phase_ = Phase::kTraining;
      return std::nullopt;
    }
    const Work work = work_.front();
    if (!std::exchange(working_, true)) BeginWork(work);
    if (!HasDone(work)) return std::nullopt;
    if (auto wrong = EndWork(work)) return wrong;
    work_.pop_front();
    working_ = false;
  }
}

Planned ElasticTraining::Wide(std::uint32_t tensor) const {
  const Planned planned = world_.books.PlannedOf(tensor);
  return {.kind = Collective::kAllReduce,
          .dtype = IsHalf(planned.dtype) ? DType::kFloat32 : planned.dtype,
          .reduction = Reduction::kSum,
          .count = planned.count};
}

void ElasticTraining::BeginWork(const Work& work) {
  using enum Work::Kind;
  const auto broadcast = [&](const std::vector<std::byte>& bytes) {
    const Planned planned{.kind = Collective::kBroadcast,
                          .dtype = DType::kUInt8,
                          .root = work.root,
                          .count = bytes.size()};
    collective_ = session_->Post(planned, ElasticSession::Place::kLarge, bytes);
  };
  switch (work.kind) {
    case kHandOn: {
      // The average, then of whom it is.
      const Average& own = averages_[work.tensor];
      std::vector<std::byte> bytes = own.bytes;
      bytes.resize(world_.books.PlannedOf(work.tensor).Bytes());
      const auto* number = reinterpret_cast<const std::byte*>(&own.contributors);
      bytes.insert(bytes.end(), number, number + sizeof own.contributors);
      return broadcast(bytes);
    }
    case kSumAgain:
      return PostGradients(zeros_);
    case kSumBeside: {
      const Planned wide = Wide(work.tensor);
      std::vector<std::byte> bytes(wide.Bytes());
      if (!newcomer_) {
        bytes = Widen(world_.books.PlannedOf(work.tensor).dtype,
                      world_.books.GradientOf(process_, applied_ + 1, work.tensor));
      }
      collective_ = session_->Post(wide, ElasticSession::Place::kLarge, bytes);
      return;
    }
    case kVote:
      collective_ = session_->PostBarrier(false);
      return;
    case kApply:
      return;
    case kHandOver:
      return broadcast(PackState());
  }
}

bool ElasticTraining::HasDone(const Work& work) const {
  if (work.kind == Work::Kind::kApply) return true;
  if (work.kind == Work::Kind::kSumAgain) return open_ == 0;
  return HasEnded(collective_);
}

std::optional<std::string> ElasticTraining::EndWork(const Work& work) {
  using enum Work::Kind;
  switch (work.kind) {
    case kHandOn:
      return EndHandOn(work);
    case kSumAgain:
      zeros_ = 0;
      counts_.summed_again += tensors_count();
      return std::nullopt;
    case kSumBeside:
      if (!newcomer_) EndBeside(work);
      return std::nullopt;
    case kVote:
      return newcomer_ ? std::nullopt : CheckOthersHaveAll();
    case kApply:
      if (!newcomer_) return Apply();
      if (listening_) ++applied_;
      return std::nullopt;
    case kHandOver:
      return EndHandOver(work);
  }
  return std::nullopt;
}

std::optional<std::string> ElasticTraining::EndHandOn(const Work& work) {
  if (newcomer_) return std::nullopt;
  Average given;
  const auto end = result_.end() - static_cast<std::ptrdiff_t>(sizeof given.contributors);
  given.bytes.assign(result_.begin(), end);
  std::memcpy(&given.contributors, &*end, sizeof given.contributors);
  Average& own = averages_[work.tensor];
  if (own.contributors == 0) ++counts_.handed_on;
  if (own.contributors != 0 && own.bytes != given.bytes) {
    return fmt::format("two ranks have other averages {} of iteration {}", work.tensor,
                       applied_ + 1);
  }
  own = std::move(given);
  return std::nullopt;
}

void ElasticTraining::EndBeside(const Work& work) {
  const Planned planned = world_.books.PlannedOf(work.tensor);
  if (planned.reduction == Reduction::kAverage) {
    if (planned.dtype == DType::kFloat64) {
      DivideEach(result_, static_cast<double>(old_.size()));
    } else {
      DivideEach(result_, static_cast<float>(old_.size()));
    }
  }
  averages_[work.tensor] = {.contributors = ContributorsNow(),
                            .bytes = Narrow(planned.dtype, result_)};
  ++counts_.beside;
}

std::vector<std::byte> ElasticTraining::PackState() const {
  const std::uint64_t numbers[] = {applied_, state_};
  std::vector<std::byte> bytes(sizeof numbers + kStateBytes);
  std::memcpy(bytes.data(), numbers, sizeof numbers);
  for (std::size_t i = 0; i < kStateBytes; ++i) {
    bytes[sizeof numbers + i] = std::byte(state_ >> i % 57 & 0xff);
  }
  return bytes;
}

std::optional<std::string> ElasticTraining::EndHandOver(const Work& /*work*/) {
  std::uint64_t numbers[2];
  std::memcpy(numbers, result_.data(), sizeof numbers);
  if (newcomer_) {
    newcomer_ = false;
    applied_ = numbers[0];
    state_ = numbers[1];
    ++counts_.received;
    if (auto wrong = world_.books.OnReceived(process_, applied_, state_)) return wrong;
  } else if (applied_ + 1 == numbers[0]) {
    ++counts_.caught_up;
    if (world_.votes) {
      // It has what it takes to come to the same state by itself.
      if (auto wrong = Apply()) return wrong;
    } else {
      applied_ = numbers[0];
      state_ = numbers[1];
    }
  }
  for (Average& each : averages_) each = {};
  if (applied_ != numbers[0] || PackState() != result_) {
    return fmt::format("process {} is in another state after iteration {} than it was told",
                       process_, applied_);
  }
  return std::nullopt;
}

std::optional<std::string> ElasticTraining::Apply() {
  const Result<std::uint64_t> after =
      world_.books.OnApplied(process_, applied_ + 1, state_, averages_);
  if (!after) return after.error().text();
  state_ = *after;
  ++applied_;
  begun_ = false;
  for (Average& each : averages_) each = {};
  return std::nullopt;
}

// ---- iterations ---------------------------------------------------------------------------------

void ElasticTraining::PostGradients(std::uint64_t zeros) {
  ++layout_iteration_;
  zeros_ = zeros;
  for (std::uint32_t tensor = 0; tensor < tensors_count(); ++tensor) {
    const Planned planned = world_.books.PlannedOf(tensor);
    std::vector<std::byte> bytes(planned.Bytes());
    if ((zeros >> tensor & 1) == 0) {
      bytes = world_.books.GradientOf(process_, applied_ + 1, tensor);
    }
    session_->PostGradient(planned, applied_ + 1, layout_iteration_, tensor, bytes, 0);
    ++open_;
  }
}

void ElasticTraining::BeginIteration() {
  begun_ = true;
  averaged_ = applied_ + 1;
  averaged_world_ = ContributorsCount();
  ++layout_iteration_;
  order_.resize(tensors_count());
  std::iota(order_.begin(), order_.end(), 0U);
  std::ranges::reverse(order_);
  for (std::size_t i = order_.size(); i > 1 && world_.dice.Chance(50); --i) {
    std::swap(order_[i - 1], order_[world_.dice.Below(i)]);
  }
  posted_ = 0;
  PostPiece();
  const bool sends = listening_ && session_->rank() == old_[0];
  const std::int64_t flags[] = {called_ ? 1 : 0, sends && world_.dice.Chance(40) ? 1 : 0};
  const Planned planned{.kind = Collective::kAllReduce,
                        .dtype = DType::kInt64,
                        .reduction = Reduction::kMax,
                        .count = std::size(flags)};
  flag_ = session_->Post(planned, ElasticSession::Place::kSmall, std::as_bytes(std::span(flags)));
}

std::uint32_t ElasticTraining::ContributorsCount() const {
  return static_cast<std::uint32_t>(listening_ ? old_.size() : session_->world_size());
}

// A newcomer gives negative zeros, which leave all sums as they are.
std::vector<std::byte> ElasticTraining::GradientOf(std::uint32_t tensor) const {
  if (!newcomer_) return world_.books.GradientOf(process_, applied_ + 1, tensor);
  const Planned planned = world_.books.PlannedOf(tensor);
  std::vector<std::byte> bytes(planned.Bytes());
  const std::size_t size = SizeOf(planned.dtype);
  for (std::size_t at = size - 1; at < bytes.size(); at += size) bytes[at] = std::byte{0x80};
  return bytes;
}

// Of before the iteration; nobody waits for it before the iteration's end.
void ElasticTraining::PostPiece() {
  piece_ = 0;
  if (!listening_ || std::exchange(has_sent_, true)) return;
  const std::vector<std::byte> bytes = PackState();
  const Planned planned{.kind = Collective::kBroadcast,
                        .dtype = DType::kUInt8,
                        .root = old_[0],
                        .count = bytes.size()};
  piece_ = session_->Post(planned, ElasticSession::Place::kLarge, bytes);
}

std::optional<std::string> ElasticTraining::ReadPiece() {
  if (piece_ == 0 || !newcomer_) return std::nullopt;
  std::uint64_t numbers[2];
  std::memcpy(numbers, piece_result_.data(), sizeof numbers);
  if (numbers[0] != applied_) {
    return fmt::format("process {} has averages from iteration {} on, and the state after {}",
                       process_, applied_ + 1, numbers[0]);
  }
  state_ = numbers[1];
  return world_.books.OnReceived(process_, applied_, state_);
}

std::optional<std::string> ElasticTraining::Seat() {
  listening_ = seats_ = has_sent_ = false;
  old_.resize(session_->world_size());
  std::iota(old_.begin(), old_.end(), 0U);
  if (!std::exchange(newcomer_, false)) return std::nullopt;
  ++counts_.received;
  ++counts_.listened;
  return world_.books.OnReceived(process_, applied_, state_);
}

std::optional<std::string> ElasticTraining::Train() {
  if (!begun_) BeginIteration();
  for (std::uint64_t some = world_.dice.Between(1, tensors_count());
       some > 0 && posted_ < order_.size(); --some) {
    const std::uint32_t tensor = order_[posted_++];
    session_->PostGradient(world_.books.PlannedOf(tensor), applied_ + 1, layout_iteration_, tensor,
                           GradientOf(tensor), listening_ ? ContributorsCount() : 0);
    ++open_;
  }
  if (posted_ < order_.size()) return std::nullopt;
  collective_ = world_.votes ? session_->PostBarrier(true) : flag_;
  phase_ = Phase::kClosing;
  return std::nullopt;
}

std::optional<std::string> ElasticTraining::CloseIteration() {
  if (open_ != 0 || !HasEnded(collective_) || !HasEnded(flag_)) return std::nullopt;
  if (piece_ != 0 && !HasEnded(piece_)) return std::nullopt;
  if (world_.votes) {
    if (auto wrong = CheckOthersHaveAll()) return wrong;
  }
  if (auto wrong = ReadPiece()) return wrong;
  phase_ = Phase::kTraining;
  if (auto wrong = Apply()) return wrong;
  return listening_ && seats_ ? Seat() : std::nullopt;
}

// The barrier has said so.
std::optional<std::string> ElasticTraining::CheckOthersHaveAll() const {
  return world_.others_have(*session_, applied_ + 1);
}

}  // namespace headrace::sim
