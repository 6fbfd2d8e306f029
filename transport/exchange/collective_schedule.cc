#include "transport/exchange/collective_schedule.h"

#include <algorithm>
#include <bit>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

class Writer {
 public:
  explicit Writer(CollectiveSchedule& schedule) : schedule_(schedule) {}

  // The messages of the round follow: sends first.
  Writer& Begin(std::uint32_t number) {
    HR_CHECK(schedule_.rounds_count < kRoundsMax && number <= UINT8_MAX, number);
    round_ = &schedule_.rounds[schedule_.rounds_count++];
    *round_ = {.number = static_cast<std::uint8_t>(number), .peers_begin = schedule_.peers_count};
    return *this;
  }
  Writer& Empty() {
    round_->empty = true;
    return *this;
  }
  Writer& Send(std::uint32_t peer) {
    HR_CHECK(round_->receives_count == 0, peer);
    Push(peer);
    ++round_->sends_count;
    return *this;
  }
  Writer& Receive(std::uint32_t peer) {
    Push(peer);
    ++round_->receives_count;
    return *this;
  }
  Writer& SendToOthers(const PieceSpec& spec) {
    for (std::uint32_t peer = 0; peer < spec.data_count; ++peer) {
      if (peer != spec.self) Send(peer);
    }
    return *this;
  }
  Writer& ReceiveFromOthers(const PieceSpec& spec) {
    for (std::uint32_t peer = 0; peer < spec.data_count; ++peer) {
      if (peer != spec.self) Receive(peer);
    }
    return *this;
  }
  void ThenSum(bool last) {
    round_->staged = true;
    round_->last = last;
    schedule_.staged_max = std::max(schedule_.staged_max, round_->receives_count);
  }

 private:
  void Push(std::uint32_t peer) {
    HR_CHECK(schedule_.peers_count < kSchedulePeersMax, peer);
    schedule_.peers[schedule_.peers_count++] = static_cast<std::uint8_t>(peer);
  }

  CollectiveSchedule& schedule_;
  Round* round_ = nullptr;
};

void WriteExchange(const PieceSpec& spec, Writer& writer) {
  writer.Begin(0).SendToOthers(spec).ReceiveFromOthers(spec).ThenSum(true);
}

// A half has no word of its end: every node owns some piece of it (Cut), so each waits for all
// others in it, and none can be ahead of another by more than the half.
void WriteScatter(const PieceSpec& spec, Writer& writer) {
  const bool scatters = spec.kind != Collective::kAllGather;
  const bool gathers = spec.kind != Collective::kReduceScatter;
  if (spec.self == spec.owner) {
    if (scatters) writer.Begin(0).ReceiveFromOthers(spec).ThenSum(true);
    if (gathers) writer.Begin(1).SendToOthers(spec);
    return;
  }
  if (scatters) writer.Begin(0).Send(spec.owner);
  if (gathers) writer.Begin(1).Receive(spec.owner);
}

// The sum goes from the node behind the owner round to the owner, which makes the last addition;
// the result goes the same way once more, and stops before the owner.
void WriteRing(const PieceSpec& spec, Writer& writer) {
  const std::uint32_t n = spec.data_count;
  const std::uint32_t next = (spec.self + 1) % n;
  const std::uint32_t previous = (spec.self + n - 1) % n;
  const std::uint32_t step = (spec.self + 2 * n - spec.owner - 1) % n;  // of the owner: n - 1
  if (step > 0) writer.Begin(step - 1).Receive(previous).ThenSum(step == n - 1);
  writer.Begin(step).Send(next);
  if (step == n - 1) return;
  writer.Begin(n - 1 + step).Receive(previous);
  if (step + 2 < n) writer.Begin(n + step).Send(next);
}

// The first 2 * surplus nodes fold to half as many, so that a power of two is left. After each step
// a node has the sum of a run of neighbours, in their order; so both of a pair make the same bits.
void WriteDoubling(const PieceSpec& spec, Writer& writer) {
  const std::uint32_t leaders = std::bit_floor(spec.data_count);
  const std::uint32_t surplus = spec.data_count - leaders;
  const auto steps = static_cast<std::uint32_t>(std::countr_zero(leaders));
  const auto member = [surplus](std::uint32_t leader) {
    return leader < surplus ? 2 * leader : leader + surplus;
  };
  const bool folded = spec.self < 2 * surplus;
  if (folded && spec.self % 2 == 1) {
    writer.Begin(0).Send(spec.self - 1);
    writer.Begin(steps + 1).Receive(spec.self - 1);
    return;
  }
  if (folded) writer.Begin(0).Receive(spec.self + 1).ThenSum(false);
  const std::uint32_t leader = folded ? spec.self / 2 : spec.self - surplus;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t partner = member(leader ^ (1U << step));
    writer.Begin(step + 1).Send(partner).Receive(partner).ThenSum(step + 1 == steps);
  }
  if (folded) writer.Begin(steps + 1).Send(spec.self + 1);
}

// Members of a reduce that get no result get word that the sum was made: so nobody can be ahead of
// a server by more than its window.
void WriteServed(const PieceSpec& spec, Writer& writer) {
  const bool reduce = spec.kind == Collective::kReduce;
  if (spec.self != spec.owner) {
    HR_CHECK(spec.self < spec.data_count, spec.self);
    writer.Begin(0).Send(spec.owner);
    if (!reduce || spec.self == spec.root) {
      writer.Begin(1).Receive(spec.owner);
    } else {
      writer.Begin(2).Empty().Receive(spec.owner);
    }
    return;
  }
  writer.Begin(0).ReceiveFromOthers(spec).ThenSum(true);
  if (!reduce) {
    writer.Begin(1).SendToOthers(spec);
    return;
  }
  writer.Begin(1).Send(spec.root);
  writer.Begin(2).Empty();
  for (std::uint32_t peer = 0; peer < spec.data_count; ++peer) {
    if (peer != spec.root) writer.Send(peer);
  }
}

// Here and in broadcasts, who gets something says so: else a root could be ahead of the others by
// any number of transfers, and its messages would pile up there.
void WriteToRoot(const PieceSpec& spec, Writer& writer) {
  if (spec.self == spec.root) {
    writer.Begin(0).ReceiveFromOthers(spec).ThenSum(true);
    writer.Begin(1).Empty().SendToOthers(spec);
    return;
  }
  writer.Begin(0).Send(spec.root);
  writer.Begin(1).Empty().Receive(spec.root);
}

void WriteFromRoot(const PieceSpec& spec, Writer& writer) {
  if (spec.self == spec.root) {
    writer.Begin(0).SendToOthers(spec);
    writer.Begin(1).Empty().ReceiveFromOthers(spec);
    return;
  }
  writer.Begin(0).Receive(spec.root);
  writer.Begin(1).Empty().Send(spec.root);
}

void WriteFromRootByOwners(const PieceSpec& spec, Writer& writer) {
  if (spec.self == spec.root) {
    writer.Begin(0).Send(spec.owner);
    writer.Begin(2).Empty().Receive(spec.owner);
    return;
  }
  if (spec.self != spec.owner) {
    writer.Begin(1).Receive(spec.owner);
    writer.Begin(2).Empty().Send(spec.owner);
    return;
  }
  writer.Begin(0).Receive(spec.root);
  writer.Begin(1);
  for (std::uint32_t peer = 0; peer < spec.data_count; ++peer) {
    if (peer != spec.self && peer != spec.root) writer.Send(peer);
  }
  writer.Begin(2).Empty().Send(spec.root);
  for (std::uint32_t peer = 0; peer < spec.data_count; ++peer) {
    if (peer != spec.self && peer != spec.root) writer.Receive(peer);
  }
}

// After step k each node has received, directly or not, from the 2^(k+1) nodes before it.
void WriteBarrier(const PieceSpec& spec, Writer& writer) {
  const std::uint32_t n = spec.data_count;
  std::uint32_t number = 0;
  for (std::uint32_t distance = 1; distance < n; distance *= 2) {
    const std::uint32_t after = (spec.self + distance) % n;
    const std::uint32_t before = (spec.self + n - distance) % n;
    writer.Begin(number++).Empty().Send(after).Receive(before);
  }
}

}  // namespace

std::optional<CollectiveSchedule::Spot> CollectiveSchedule::FindReceive(
    std::uint8_t round_number, std::uint16_t sender) const {
  for (std::size_t r = 0; r < rounds_count; ++r) {
    if (rounds[r].number != round_number) continue;
    const auto senders = Receives(rounds[r]);
    const auto found = std::ranges::find(senders, sender);
    if (found == senders.end()) return std::nullopt;
    return Spot{.round = r, .receive = static_cast<std::size_t>(found - senders.begin())};
  }
  return std::nullopt;
}

CollectiveSchedule MakeSchedule(const PieceSpec& spec) {
  CollectiveSchedule schedule;
  Writer writer(schedule);
  // Alone there is nobody to talk to, but an average is still divided and a sum still delivered.
  if (spec.data_count == 1 && spec.pattern != Pattern::kServed) {
    if (Reduces(spec.kind)) WriteExchange(spec, writer);
    return schedule;
  }
  switch (spec.pattern) {
    case Pattern::kExchange:
      WriteExchange(spec, writer);
      break;
    case Pattern::kDoubling:
      WriteDoubling(spec, writer);
      break;
    case Pattern::kScatter:
      WriteScatter(spec, writer);
      break;
    case Pattern::kRing:
      WriteRing(spec, writer);
      break;
    case Pattern::kServed:
      WriteServed(spec, writer);
      break;
    case Pattern::kToRoot:
      WriteToRoot(spec, writer);
      break;
    case Pattern::kFromRoot:
      WriteFromRoot(spec, writer);
      break;
    case Pattern::kFromRootByOwners:
      WriteFromRootByOwners(spec, writer);
      break;
    case Pattern::kBarrier:
      WriteBarrier(spec, writer);
      break;
  }
  return schedule;
}

}  // namespace headrace::transport
