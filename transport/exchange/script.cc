#include "transport/exchange/script.h"

#include <algorithm>
#include <bit>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

class Writer {
 public:
  explicit Writer(Script& script) : script_(script) {}

  // The messages of the round follow: sends first.
  Writer& Begin(std::uint32_t number) {
    HR_CHECK(script_.rounds_count < kRoundsMax && number <= UINT8_MAX, number);
    round_ = &script_.rounds[script_.rounds_count++];
    *round_ = {.number = static_cast<std::uint8_t>(number), .peers_begin = script_.peers_count};
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
  Writer& SendToOthers(const Place& place) {
    for (std::uint32_t peer = 0; peer < place.data_count; ++peer) {
      if (peer != place.self) Send(peer);
    }
    return *this;
  }
  Writer& ReceiveFromOthers(const Place& place) {
    for (std::uint32_t peer = 0; peer < place.data_count; ++peer) {
      if (peer != place.self) Receive(peer);
    }
    return *this;
  }
  void ThenSum(bool last) {
    round_->staged = true;
    round_->last = last;
    script_.staged_max = std::max(script_.staged_max, round_->receives_count);
  }

 private:
  void Push(std::uint32_t peer) {
    HR_CHECK(script_.peers_count < kScriptPeersMax, peer);
    script_.peers[script_.peers_count++] = static_cast<std::uint8_t>(peer);
  }

  Script& script_;
  Round* round_ = nullptr;
};

void WriteExchange(const Place& place, Writer& writer) {
  writer.Begin(0).SendToOthers(place).ReceiveFromOthers(place).ThenSum(true);
}

void WriteScatter(const Place& place, Writer& writer) {
  if (place.self == place.owner) {
    writer.Begin(0).ReceiveFromOthers(place).ThenSum(true);
    writer.Begin(1).SendToOthers(place);
    return;
  }
  writer.Begin(0).Send(place.owner);
  writer.Begin(1).Receive(place.owner);
}

// The sum goes from the node behind the owner round to the owner, which makes the last addition;
// the result goes the same way once more, and stops before the owner.
void WriteRing(const Place& place, Writer& writer) {
  const std::uint32_t n = place.data_count;
  const std::uint32_t next = (place.self + 1) % n;
  const std::uint32_t previous = (place.self + n - 1) % n;
  const std::uint32_t step = (place.self + 2 * n - place.owner - 1) % n;  // of the owner: n - 1
  if (step > 0) writer.Begin(step - 1).Receive(previous).ThenSum(step == n - 1);
  writer.Begin(step).Send(next);
  if (step == n - 1) return;
  writer.Begin(n - 1 + step).Receive(previous);
  if (step + 2 < n) writer.Begin(n + step).Send(next);
}

// The first 2 * surplus nodes fold to half as many, so that a power of two is left. After each step
// a node has the sum of a run of neighbours, in their order; so both of a pair make the same bits.
void WriteDoubling(const Place& place, Writer& writer) {
  const std::uint32_t leaders = std::bit_floor(place.data_count);
  const std::uint32_t surplus = place.data_count - leaders;
  const auto steps = static_cast<std::uint32_t>(std::countr_zero(leaders));
  const auto member = [surplus](std::uint32_t leader) {
    return leader < surplus ? 2 * leader : leader + surplus;
  };
  const bool folded = place.self < 2 * surplus;
  if (folded && place.self % 2 == 1) {
    writer.Begin(0).Send(place.self - 1);
    writer.Begin(steps + 1).Receive(place.self - 1);
    return;
  }
  if (folded) writer.Begin(0).Receive(place.self + 1).ThenSum(false);
  const std::uint32_t leader = folded ? place.self / 2 : place.self - surplus;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t partner = member(leader ^ (1U << step));
    writer.Begin(step + 1).Send(partner).Receive(partner).ThenSum(step + 1 == steps);
  }
  if (folded) writer.Begin(steps + 1).Send(place.self + 1);
}

// Members of a reduce that get no result get word that the sum was made: so nobody can be ahead of
// a server by more than its window.
void WriteServed(const Place& place, Writer& writer) {
  const bool reduce = place.kind == Collective::kReduce;
  if (place.self != place.owner) {
    HR_CHECK(place.self < place.data_count, place.self);
    writer.Begin(0).Send(place.owner);
    if (!reduce || place.self == place.root) {
      writer.Begin(1).Receive(place.owner);
    } else {
      writer.Begin(2).Empty().Receive(place.owner);
    }
    return;
  }
  writer.Begin(0).ReceiveFromOthers(place).ThenSum(true);
  if (!reduce) {
    writer.Begin(1).SendToOthers(place);
    return;
  }
  writer.Begin(1).Send(place.root);
  writer.Begin(2).Empty();
  for (std::uint32_t peer = 0; peer < place.data_count; ++peer) {
    if (peer != place.root) writer.Send(peer);
  }
}

// Here and in broadcasts, who gets something says so: else a root could be ahead of the others by
// any number of transfers, and its messages would pile up there.
void WriteToRoot(const Place& place, Writer& writer) {
  if (place.self == place.root) {
    writer.Begin(0).ReceiveFromOthers(place).ThenSum(true);
    writer.Begin(1).Empty().SendToOthers(place);
    return;
  }
  writer.Begin(0).Send(place.root);
  writer.Begin(1).Empty().Receive(place.root);
}

void WriteFromRoot(const Place& place, Writer& writer) {
  if (place.self == place.root) {
    writer.Begin(0).SendToOthers(place);
    writer.Begin(1).Empty().ReceiveFromOthers(place);
    return;
  }
  writer.Begin(0).Receive(place.root);
  writer.Begin(1).Empty().Send(place.root);
}

void WriteFromRootByOwners(const Place& place, Writer& writer) {
  if (place.self == place.root) {
    writer.Begin(0).Send(place.owner);
    writer.Begin(2).Empty().Receive(place.owner);
    return;
  }
  if (place.self != place.owner) {
    writer.Begin(1).Receive(place.owner);
    writer.Begin(2).Empty().Send(place.owner);
    return;
  }
  writer.Begin(0).Receive(place.root);
  writer.Begin(1);
  for (std::uint32_t peer = 0; peer < place.data_count; ++peer) {
    if (peer != place.self && peer != place.root) writer.Send(peer);
  }
  writer.Begin(2).Empty().Send(place.root);
  for (std::uint32_t peer = 0; peer < place.data_count; ++peer) {
    if (peer != place.self && peer != place.root) writer.Receive(peer);
  }
}

// After step k each node has heard, directly or not, of the 2^(k+1) nodes before it.
void WriteBarrier(const Place& place, Writer& writer) {
  const std::uint32_t n = place.data_count;
  std::uint32_t number = 0;
  for (std::uint32_t distance = 1; distance < n; distance *= 2) {
    const std::uint32_t after = (place.self + distance) % n;
    const std::uint32_t before = (place.self + n - distance) % n;
    writer.Begin(number++).Empty().Send(after).Receive(before);
  }
}

}  // namespace

Script MakeScript(const Place& place) {
  Script script;
  Writer writer(script);
  // Alone there is nobody to talk to, but an average is still divided and a sum still delivered.
  if (place.data_count == 1 && place.pattern != Pattern::kServed) {
    if (Reduces(place.kind)) WriteExchange(place, writer);
    return script;
  }
  switch (place.pattern) {
    case Pattern::kExchange:
      WriteExchange(place, writer);
      break;
    case Pattern::kDoubling:
      WriteDoubling(place, writer);
      break;
    case Pattern::kScatter:
      WriteScatter(place, writer);
      break;
    case Pattern::kRing:
      WriteRing(place, writer);
      break;
    case Pattern::kServed:
      WriteServed(place, writer);
      break;
    case Pattern::kToRoot:
      WriteToRoot(place, writer);
      break;
    case Pattern::kFromRoot:
      WriteFromRoot(place, writer);
      break;
    case Pattern::kFromRootByOwners:
      WriteFromRootByOwners(place, writer);
      break;
    case Pattern::kBarrier:
      WriteBarrier(place, writer);
      break;
  }
  return script;
}

}  // namespace headrace::transport
