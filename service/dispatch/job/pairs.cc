#include "service/dispatch/job/pairs.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/records.h"

namespace headrace::service {

Pair* Pairs::First(Collective kind, const PairSides& sides) {
  const auto found = waiting_.lower_bound(Key{sides.target, sides.tag, sides.source, 0});
  if (found == waiting_.end()) return nullptr;
  const OperationSpec& spec = found->operation.spec;
  const bool is_it = PairSides{spec.source, spec.target, spec.tag} == sides && spec.kind == kind;
  return is_it ? &*found : nullptr;
}

Pair* Pairs::Find(Collective kind, const PairSides& sides) {
  // Sequences grow with the posts until their numbers come round, which no two pairs that wait at
  // the same time live to see.
  const auto earlier = [](Pair* a, Pair* b) {
    if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
    return a->operation.spec.sequence < b->operation.spec.sequence ? a : b;
  };
  if (kind == ipc::kSend) {
    return earlier(First(ipc::kReceive, sides),
                   First(ipc::kReceive, {ipc::kAnyRank, sides.target, sides.tag}));
  }
  if (sides.source != ipc::kAnyRank) return First(ipc::kSend, sides);
  Pair* first = nullptr;
  for (std::uint32_t source = 0; source < opened_count_.size(); ++source) {
    first = earlier(first, First(ipc::kSend, {source, sides.target, sides.tag}));
  }
  return first;
}

bool Pairs::HasRoom(std::uint32_t rank) const { return opened_count_[rank] < kOperationsMax; }

Pair& Pairs::Open(Collective kind, const PairSides& sides, std::uint32_t rank) {
  if (free_.empty()) Grow();
  const std::uint32_t place = free_.back();
  free_.pop_back();
  Pair& opened = pair(place);
  HR_CHECK(opened.operation.state == Operation::State::kFree && !opened.waits(), place);
  opened.operation = Operation{};
  opened.away = Away::kNo;
  opened.announced = opened.sent = opened.other_knows = false;
  opened.send_ready = opened.withdrawn = false;
  opened.send = 0;
  opened.blocks_released = 0;
  opened.standing_ahead = 0;
  HR_CHECK(opened.data_size == 0 && opened.data.empty(), opened.data_size);
  opened.operation.state = Operation::State::kGathering;
  opened.operation.first_rank = rank;
  OperationSpec& spec = opened.operation.spec;
  spec.sequence = PairSequence(++opened_, place);
  spec.kind = kind;
  spec.source = sides.source;
  spec.target = sides.target;
  spec.tag = sides.tag;
  opened.opened_by = rank;
  ++opened_count_[rank];
  waiting_.insert(opened);
  return opened;
}

void Pairs::Match(Pair& pair, std::uint32_t source) {
  HR_CHECK(pair.waits(), pair.operation.spec.sequence);
  waiting_.erase(waiting_.iterator_to(pair));
  pair.operation.spec.source = source;
}

void Pairs::Name(Pair& pair, std::uint32_t node, std::uint64_t send) {
  pair.away = Away::kComes;
  pair.operation.comes = true;
  pair.node = node;
  pair.send = send;
  const bool inserted = named_.insert(pair).second;
  HR_CHECK(inserted, node, send);
}

Pair* Pairs::FindNamed(std::uint32_t node, std::uint64_t send) {
  const auto found = named_.find(SendName{node, send});
  return found == named_.end() ? nullptr : &*found;
}

void Pairs::HoldData(Pair& pair, std::size_t size) {
  HR_CHECK(pair.away != Away::kNo && pair.data_size == 0, pair.operation.spec.sequence);
  pair.data_size = size;
  (pair.away == Away::kGoes ? data_going : data_coming)[pair.node] += size;
}

void Pairs::DropData(Pair& pair) {
  if (pair.data_size == 0) return;
  std::size_t& held = (pair.away == Away::kGoes ? data_going : data_coming)[pair.node];
  HR_CHECK(held >= pair.data_size, held, pair.data_size);
  held -= std::exchange(pair.data_size, 0);
  pair.data = {};
}

void Pairs::KeepSent(Pair& pair) {
  HR_CHECK(pair.away == Away::kGoes && pair.data_size > 0 && !pair.sent,
           pair.operation.spec.sequence);
  if (pair.waits()) Match(pair, pair.operation.spec.source);
  pair.operation.state = Operation::State::kTombstone;
  pair.sent = true;
  ++sent_count_[pair.opened_by];
  ++sent_;
}

void Pairs::Free(Pair& pair) {
  DropData(pair);
  if (std::exchange(pair.sent, false)) {
    --sent_count_[pair.opened_by];
    --sent_;
  }
  HR_CHECK(pair.operation.state != Operation::State::kFree, pair.operation.spec.sequence);
  if (pair.away == Away::kComes) named_.erase(named_.iterator_to(pair));
  if (pair.waits()) waiting_.erase(waiting_.iterator_to(pair));
  pair.operation.state = Operation::State::kFree;
  HR_CHECK(opened_count_[pair.opened_by] > 0, pair.opened_by);
  --opened_count_[pair.opened_by];
  free_.push_back(static_cast<std::uint32_t>(PairPlace(pair.operation.spec.sequence)));
}

void Pairs::Grow() {
  const auto begin = static_cast<std::uint32_t>(capacity());
  HR_CHECK(begin < kPlacesMax, begin);
  slabs_.push_back(std::make_unique<std::array<Pair, kSlab>>());
  free_.reserve(capacity());
  for (std::uint32_t place = begin + kSlab; place > begin; --place) free_.push_back(place - 1);
}

}  // namespace headrace::service
