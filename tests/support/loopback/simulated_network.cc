// Time, and what goes wrong in it.
#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"
#include "tests/support/loopback/simulated_end.h"

namespace headrace::transport {

SimulatedNetwork::SimulatedNetwork(const SimulatedNetworkOptions& options)
    : options_(options), random_(options.seed) {}

SimulatedNetwork::~SimulatedNetwork() = default;

Wire& SimulatedNetwork::AddWire(const std::string& name) {
  for (const auto& wire : wires_) HR_CHECK(wire->name() != name, name);
  wires_.push_back(std::make_unique<SimulatedWire>(*this, wires_.size(), name));
  return *wires_.back();
}

void SimulatedNetwork::AdvanceTo(TimeNs now) {
  while (!due_.empty() && due_.begin()->first.first <= now) {
    const auto first = due_.extract(due_.begin());
    now_ = std::max(now_, first.key().first);
    Happen(first.mapped());
  }
  now_ = std::max(now_, now);
}

void SimulatedNetwork::Mend(const std::string& one, const std::string& other) {
  cut_.erase({IndexOf(one), IndexOf(other)});
  cut_.erase({IndexOf(other), IndexOf(one)});
}

TimeNs SimulatedNetwork::NextDue() const {
  return due_.empty() ? kNever : due_.begin()->first.first;
}

void SimulatedNetwork::CutOneWay(const std::string& from, const std::string& to, Silence silence) {
  cut_[{IndexOf(from), IndexOf(to)}] = true;
  if (silence == Silence::kTold) FailLinksBetween(IndexOf(from), IndexOf(to), "simulated cut");
}

void SimulatedNetwork::Cut(const std::string& one, const std::string& other, Silence silence) {
  cut_[{IndexOf(one), IndexOf(other)}] = true;
  CutOneWay(other, one, silence);
}

void SimulatedNetwork::Vanish(const std::string& name, Silence silence) {
  const std::size_t gone = IndexOf(name);
  wires_[gone]->Vanish();
  if (silence == Silence::kSilent) return;
  for (std::size_t peer = 0; peer < wires_.size(); ++peer) {
    if (peer != gone) FailLinksBetween(gone, peer, "simulated end of the node");
  }
}

void SimulatedNetwork::Refuse(const std::string& name) { wires_[IndexOf(name)]->Refuse(); }

void SimulatedNetwork::Dam(const std::string& from, const std::string& to) {
  ways_[{IndexOf(from), IndexOf(to)}].dammed = true;
}

void SimulatedNetwork::LetFlow(const std::string& from, const std::string& to) {
  const std::pair between{IndexOf(from), IndexOf(to)};
  Way& way = ways_[between];
  way.dammed = false;
  for (const ArrivalId id : way.kept) {
    const auto kept = flights_.find(id);
    if (kept == flights_.end()) continue;
    Schedule(Occupy(between.first, between.second, kept->second.size, now_),
             {.what = What::kLeave, .flight = id});
  }
  way.kept.clear();
}

std::uint64_t SimulatedNetwork::BytesOf(const std::string& from, const std::string& to,
                                        std::uint64_t key) const {
  const auto way = ways_.find({IndexOf(from), IndexOf(to)});
  if (way == ways_.end()) return 0;
  const auto bytes = way->second.bytes_by_key.find(key);
  return bytes == way->second.bytes_by_key.end() ? 0 : bytes->second;
}

void SimulatedNetwork::Inject(const std::string& to, const MessageHeader& header,
                              std::vector<std::byte> bytes) {
  InjectAt(now_, IndexOf(to), header, std::move(bytes));
}

void SimulatedNetwork::InjectAt(TimeNs at, std::size_t to, const MessageHeader& header,
                                std::vector<std::byte> bytes) {
  const ArrivalId arrival = ++flights_begun_;
  Flight flight{.to = to, .header = header, .size = bytes.size(), .has_copy = true};
  flight.copy = std::move(bytes);
  flights_[arrival] = std::move(flight);
  Schedule(at, {.what = What::kAnnounce, .flight = arrival});
}

std::size_t SimulatedNetwork::open_count() const {
  std::size_t count = 0;
  for (const auto& [id, flight] : flights_) {
    if (flight.send_open && !wires_[flight.from]->vanished()) ++count;
    if (flight.accept_open && !wires_[flight.to]->vanished()) ++count;
  }
  return count;
}

std::size_t SimulatedNetwork::staging_count() const {
  std::size_t count = 0;
  for (const auto& wire : wires_) count += wire->vanished() ? 0 : wire->staging_count();
  return count;
}

void SimulatedNetwork::Schedule(TimeNs at, Due due) {
  due_.emplace(std::pair{at, ++dues_begun_}, std::move(due));
}

void SimulatedNetwork::Happen(const Due& due) {
  if (due.what == What::kFail) {
    FailLink(due.link, due.cause);
  } else if (const auto found = flights_.find(due.flight); found != flights_.end()) {
    Flight& flight = found->second;
    if (due.what == What::kLeave) Leave(due.flight, flight);
    if (due.what == What::kAnnounce) Announce(due.flight, flight);
    if (due.what == What::kWrite) Write(due.flight, flight);
    if (due.what == What::kConfirm && Reaches(flight.to, flight.from)) {
      EndSend(flight, Code::kOk);
    }
  }
  EraseIfOver(due.flight);
}

// A small message is in nobody's memory from here on. Whether it gets there, the sender is not
// told.
void SimulatedNetwork::Leave(ArrivalId id, Flight& flight) {
  if (!flight.send_open || wires_[flight.from]->vanished()) return;
  flight.copy.assign(flight.bytes, flight.bytes + flight.size);
  flight.has_copy = true;
  ways_[{flight.from, flight.to}].bytes_by_key[flight.header.key] += flight.size;
  EndSend(flight, Code::kOk);
  Schedule(now_ + Delay(), {.what = What::kAnnounce, .flight = id});
}

void SimulatedNetwork::Announce(ArrivalId id, Flight& flight) {
  const bool from_nobody = flight.from == Flight::kNobody;
  if (flight.lost || (!from_nobody && !Reaches(flight.from, flight.to))) {
    flight.lost = true;
    return;
  }
  flight.arrived = true;
  ++announced_count_;
  wires_[flight.to]->TellAnnounced(flight.header, flight.size, id);
  const double draw = std::uniform_real_distribution<>(0, 1)(random_);
  if (from_nobody || draw >= options_.duplicate_share) return;
  // The second one carries other bytes: nobody may take it.
  InjectAt(now_ + Delay(), flight.to, flight.header,
           std::vector<std::byte>(flight.size, std::byte{0x77}));
}

void SimulatedNetwork::Write(ArrivalId id, Flight& flight) {
  if (!flight.accept_open) return;
  if (!flight.has_copy) {
    if (!Reaches(flight.from, flight.to) || !Reaches(flight.to, flight.from)) return;
    if (!flight.send_open) return EndAccept(flight, Code::kPeerLost);  // the sender gave it up
    ways_[{flight.from, flight.to}].bytes_by_key[flight.header.key] += flight.size;
    Schedule(now_ + Delay(), {.what = What::kConfirm, .flight = id});
  }
  if (flight.size > 0 && !flight.has_copy) {
    std::memcpy(flight.memory, flight.bytes, flight.size);
  }
  EndAccept(flight, Code::kOk);
}

void SimulatedNetwork::FailLink(LinkId id, const std::string& cause) {
  Link& link = links_[id];
  if (!link.open || link.failed) return;
  link.failed = true;
  // Before or after what is open ends: the contract leaves it open.
  const bool first = random_() % 2 == 0;
  if (first) wires_[link.wire]->TellFailed(id, cause);
  EndOpenOf(link, id, Code::kPeerLost);
  if (!first) wires_[link.wire]->TellFailed(id, cause);
}

// Ends what this end of the link has open; where the link failed, bytes that have left the other
// end still count.
void SimulatedNetwork::EndOpenOf(const Link& link, LinkId id, Code code) {
  const LinkId other = OtherEnd(id);
  for (auto& [arrival, flight] : flights_) {
    if (flight.from == Flight::kNobody) continue;
    if (flight.from == link.wire && flight.link == id && flight.send_open) {
      EndSend(flight, code);
      flight.lost = !flight.has_copy;
    }
    if (other == id || flight.link != other) continue;
    if (!flight.has_copy) flight.lost = true;
    // Who closes a link has its memory back at once, also where the bytes were on their way; those
    // of a small message are there.
    const bool ends = !flight.has_copy || code == Code::kCancelled;
    if (flight.accept_open && ends) EndAccept(flight, flight.has_copy ? Code::kOk : code);
  }
  std::erase_if(flights_, [](const auto& entry) { return entry.second.IsOver(); });
}

void SimulatedNetwork::EndSend(Flight& flight, Code code) {
  if (!flight.send_open) return;
  flight.send_open = false;
  wires_[flight.from]->TellSent(flight.send_token, code);
}

void SimulatedNetwork::EndAccept(Flight& flight, Code code) {
  flight.accept_open = false;
  flight.arrived = false;
  flight.lost = true;
  wires_[flight.to]->TellReceived(flight.accept_token, code);
}

// A message is over when neither end has a part in it any more.
bool SimulatedNetwork::Flight::IsOver() const {
  return lost && !arrived && !send_open && !accept_open;
}

void SimulatedNetwork::EraseIfOver(ArrivalId id) {
  const auto found = flights_.find(id);
  if (found != flights_.end() && found->second.IsOver()) flights_.erase(found);
}

void SimulatedNetwork::FailLinksBetween(std::size_t one, std::size_t other,
                                        const std::string& cause) {
  for (LinkId id = 0; id < links_.size(); ++id) {
    const Link& link = links_[id];
    if ((link.wire == one && link.peer == other) || (link.wire == other && link.peer == one)) {
      Schedule(now_ + options_.detection_ns, {.what = What::kFail, .link = id, .cause = cause});
    }
  }
}

// The id itself where the other end has not connected.
LinkId SimulatedNetwork::OtherEnd(LinkId id) const {
  LinkId found = id;
  for (LinkId other = 0; other < links_.size(); ++other) {
    const bool opposite =
        links_[id].wire == links_[other].peer && links_[id].peer == links_[other].wire;
    if (opposite && links_[id].key == links_[other].key && other != id) found = other;
  }
  return found;
}

bool SimulatedNetwork::Reaches(std::size_t from, std::size_t to) const {
  return !wires_[from]->vanished() && !wires_[to]->vanished() && !cut_.contains({from, to});
}

std::size_t SimulatedNetwork::IndexOf(const std::string& name) const {
  for (std::size_t index = 0; index < wires_.size(); ++index) {
    if (wires_[index]->name() == name) return index;
  }
  HR_CHECK(false, "no wire has the name", name);
  return 0;
}

// When so many bytes will have left, one message behind the other.
TimeNs SimulatedNetwork::Occupy(std::size_t from, std::size_t to, std::size_t size,
                                TimeNs earliest) {
  const auto bytes = static_cast<double>(size);
  TimeNs& out_free_ns = out_free_ns_[from];
  out_free_ns = std::max(out_free_ns, earliest) +
                static_cast<TimeNs>(std::llround(bytes * options_.ns_per_byte_out));
  TimeNs& free_ns = ways_[{from, to}].free_ns;
  free_ns = std::max(
      std::max(free_ns, earliest) + static_cast<TimeNs>(std::llround(bytes * options_.ns_per_byte)),
      out_free_ns);
  return free_ns;
}

TimeNs SimulatedNetwork::Delay() {
  if (options_.jitter_ns == 0) return options_.latency_ns;
  return options_.latency_ns +
         static_cast<TimeNs>(random_() % static_cast<std::uint64_t>(options_.jitter_ns + 1));
}

}  // namespace headrace::transport
