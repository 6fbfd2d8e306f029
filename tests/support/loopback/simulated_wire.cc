#include "tests/support/loopback/simulated_wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "ipc/base/check.h"
#include "tests/support/loopback/simulated_end.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kStagingAlignment = 4096;  // whole pages, which can be pinned

std::span<std::byte> Aligned(std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t skipped = (kStagingAlignment - address % kStagingAlignment) % kStagingAlignment;
  return {memory.data() + skipped, memory.size() - kStagingAlignment};
}

}  // namespace

Result<LinkId> SimulatedNetwork::SimulatedWire::Connect(const std::string& address,
                                                        std::uint64_t key,
                                                        std::uint16_t /*member*/) {
  for (const auto& wire : network_.wires_) {
    if (wire->address() != address) continue;
    if (wire->refuses_) return Error(Code::kUnavailable, address + " refuses connections");
    const std::size_t peer = wire->index_;
    network_.links_.push_back({.wire = index_, .peer = peer, .key = key});
    return static_cast<LinkId>(network_.links_.size() - 1);
  }
  return Error(Code::kUnavailable, "no simulated wire has the address '" + address + "'");
}

void SimulatedNetwork::SimulatedWire::Close(LinkId id) {
  HR_CHECK(id < network_.links_.size() && network_.links_[id].wire == index_, id);
  Link& link = network_.links_[id];
  HR_CHECK(link.open, id);
  link.open = false;
  network_.EndOpenOf(link, id, Code::kCancelled);
  // What has left already arrives before word of the end does.
  const bool told = network_.options_.closes_are_told && network_.Reaches(index_, link.peer);
  if (link.failed || !told) return;
  const LinkId other = network_.OtherEnd(id);
  if (other == id) return;
  network_.Schedule(network_.now_ + network_.options_.latency_ns + network_.options_.jitter_ns + 1,
                    {.what = What::kFail, .link = other, .cause = "the other end closed it"});
}

void SimulatedNetwork::SimulatedWire::Send(LinkId id, const MessageHeader& header,
                                           const std::byte* bytes, std::size_t size,
                                           std::uint64_t token) {
  HR_CHECK(id < network_.links_.size() && network_.links_[id].wire == index_, id);
  Link& link = network_.links_[id];
  HR_CHECK(link.open, id);
  HR_CHECK(header.key == link.key, id, header.key);
  if (link.failed) return TellSent(token, Code::kPeerLost);
  const ArrivalId arrival = ++network_.flights_begun_;
  network_.flights_[arrival] = {.from = index_,
                                .to = link.peer,
                                .link = id,
                                .header = header,
                                .bytes = bytes,
                                .size = size,
                                .send_token = token,
                                .send_open = true};
  if (size > network_.options_.eager_size) {
    network_.Schedule(network_.now_ + network_.Delay(),
                      {.what = What::kAnnounce, .flight = arrival});
    return;
  }
  Way& way = network_.ways_[{index_, link.peer}];
  if (way.dammed) return way.kept.push_back(arrival);
  network_.Schedule(network_.Occupy(index_, link.peer, size, network_.now_),
                    {.what = What::kLeave, .flight = arrival});
}

void SimulatedNetwork::SimulatedWire::Accept(ArrivalId arrival, std::byte* memory,
                                             std::uint64_t token, std::size_t whole) {
  network_.wholes_.insert(whole);
  const auto found = network_.flights_.find(arrival);
  HR_CHECK(found != network_.flights_.end() && found->second.to == index_, arrival);
  Flight& flight = found->second;
  HR_CHECK(flight.arrived && flight.memory == nullptr && !flight.accept_open, arrival);
  flight.memory = memory;
  flight.accept_token = token;
  flight.accept_open = true;
  if (flight.lost) {
    network_.EndAccept(flight, Code::kPeerLost);
    return network_.EraseIfOver(arrival);
  }
  // A small one is here, and no link's end can take it back; its receiver is told a little later.
  if (flight.has_copy) {
    if (flight.size > 0) std::memcpy(memory, flight.copy.data(), flight.size);
    return network_.Schedule(network_.now_, {.what = What::kWrite, .flight = arrival});
  }
  // The receiver's word goes there, the bytes come back.
  const TimeNs left = network_.Occupy(flight.from, flight.to, flight.size,
                                      network_.now_ + network_.options_.latency_ns);
  network_.Schedule(left + network_.Delay(), {.what = What::kWrite, .flight = arrival});
}

// The sender learns nothing else than that its message has come.
void SimulatedNetwork::SimulatedWire::Drop(ArrivalId arrival) {
  const auto found = network_.flights_.find(arrival);
  HR_CHECK(found != network_.flights_.end() && found->second.to == index_, arrival);
  Flight& flight = found->second;
  HR_CHECK(flight.arrived && !flight.accept_open, arrival);
  flight.arrived = false;
  flight.lost = true;
  if (flight.send_open) {
    network_.Schedule(network_.now_ + network_.Delay(),
                      {.what = What::kConfirm, .flight = arrival});
  }
  network_.EraseIfOver(arrival);
}

// Filled, so that nobody takes fresh memory for zeros.
Result<std::span<std::byte>> SimulatedNetwork::SimulatedWire::AllocateStaging(std::size_t size) {
  staging_.emplace_back(size + kStagingAlignment, std::byte{0xCD});
  return Aligned(staging_.back());
}

void SimulatedNetwork::SimulatedWire::FreeStaging(std::span<std::byte> memory) {
  const std::less<const std::byte*> before;
  for (const auto& [id, flight] : network_.flights_) {
    const bool receives = flight.accept_open && !before(flight.memory, memory.data()) &&
                          before(flight.memory, memory.data() + memory.size());
    const bool sends = flight.send_open && !before(flight.bytes, memory.data()) &&
                       before(flight.bytes, memory.data() + memory.size());
    HR_CHECK(!receives && !sends, id, name_);
  }
  const auto count = std::erase_if(staging_, [memory](std::vector<std::byte>& own) {
    return Aligned(own).data() == memory.data();
  });
  HR_CHECK(count == 1, name_);
}

bool SimulatedNetwork::SimulatedWire::Progress(WireEvents& events) {
  if (vanished_) return false;
  std::vector<News> news;
  news.swap(news_);
  for (const News& one : news) {
    switch (one.kind) {
      case Kind::kAnnounced:
        events.Announced(one.header, one.size, one.number);
        break;
      case Kind::kSent:
        events.Sent(one.number, one.code);
        break;
      case Kind::kReceived:
        events.Received(one.number, one.code);
        break;
      case Kind::kFailed:
        if (network_.links_[one.number].open) {
          events.LinkFailed(static_cast<LinkId>(one.number), one.cause);
        }
        break;
    }
  }
  return !news.empty();
}

void SimulatedNetwork::SimulatedWire::TellAnnounced(const MessageHeader& header, std::size_t size,
                                                    ArrivalId arrival) {
  news_.push_back({.kind = Kind::kAnnounced, .header = header, .size = size, .number = arrival});
}

void SimulatedNetwork::SimulatedWire::TellSent(std::uint64_t token, Code code) {
  news_.push_back({.kind = Kind::kSent, .number = token, .code = code});
}

void SimulatedNetwork::SimulatedWire::TellReceived(std::uint64_t token, Code code) {
  news_.push_back({.kind = Kind::kReceived, .number = token, .code = code});
}

void SimulatedNetwork::SimulatedWire::TellFailed(LinkId link, const std::string& cause) {
  news_.push_back({.kind = Kind::kFailed, .number = link, .cause = cause});
}

}  // namespace headrace::transport
