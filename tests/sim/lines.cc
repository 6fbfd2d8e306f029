#include "tests/sim/lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/simulated_service.h"

namespace headrace::sim {
namespace {

constexpr TimeNs kHelloTimeout = 5 * kSecond;

std::string NameIn(const std::string& leader) { return leader.substr(0, leader.find(':')); }

}  // namespace

void Lines::Add(SimulatedService& service) {
  services_[service.name()] = &service;
  gone_.erase(service.name());
}

void Lines::StandStill(const SimulatedService& service) { standing_[service.instance()]; }

void Lines::Resume(const SimulatedService& service) {
  const auto waiting = standing_.extract(service.instance());
  for (const std::function<void()>& each : waiting.mapped()) each();
}

void Lines::WhenAwake(Instance instance, std::function<void()> what) {
  const auto standing = standing_.find(instance);
  if (standing == standing_.end()) return what();
  standing->second.push_back(std::move(what));
}

void Lines::Kill(const std::string& name, Death death) {
  services_.erase(name);
  if (death == Death::kMachine) {
    gone_.insert(name);
    return;
  }
  std::vector<std::pair<LineId, Side>> ends;
  for (auto& [id, line] : lines_) {
    for (const Side side : {Side::kDialer, Side::kListener}) {
      if (line.at(side).name == name) ends.emplace_back(id, side);
    }
  }
  for (const auto& [id, side] : ends) {
    lines_.at(id).at(side).open = false;
    Carry(id, Other(side), [this, id = id, side = side](Line&) {
      Broke(id, Other(side), "Connection reset by peer");
    });
  }
}

bool Lines::Break(const std::string& one, const std::string& other) {
  for (auto& [id, line] : lines_) {
    const bool between = (line.ends[0].name == one && line.ends[1].name == other) ||
                         (line.ends[0].name == other && line.ends[1].name == one);
    if (!between || one == other || !line.ends[0].open || !line.ends[1].open) continue;
    for (const Side side : {Side::kDialer, Side::kListener}) {
      Carry(id, side, [this, id = id, side](Line&) { Broke(id, side, "Connection timed out"); });
    }
    return true;
  }
  return false;
}

SimulatedService* Lines::Find(Instance instance) const {
  for (const auto& [name, service] : services_) {
    if (service->instance() == instance) return service;
  }
  return nullptr;
}

bool Lines::Reaches(const std::string& from, const std::string& to) const {
  return !gone_.contains(from) && !gone_.contains(to) && !cut_.contains({from, to});
}

void Lines::Dial(SimulatedService& from, const std::string& leader, std::uint64_t attempt) {
  timeline_.After(Delay(), [this, instance = from.instance(), leader, attempt] {
    const auto found = services_.find(NameIn(leader));
    const Instance listener = found == services_.end() ? 0 : found->second->instance();
    WhenAwake(listener, [this, instance, leader, attempt] { Accept(instance, leader, attempt); });
  });
}

void Lines::Silent(Instance from, const std::string& leader, std::uint64_t attempt, TimeNs after_ns,
                   const std::string& why) {
  timeline_.After(after_ns, [this, from, leader, attempt, why] {
    WhenAwake(from, [this, from, leader, attempt, why] {
      if (SimulatedService* dialer = Find(from)) dialer->Silent(leader, attempt, why);
    });
  });
}

void Lines::Accept(Instance from, const std::string& leader, std::uint64_t attempt) {
  SimulatedService* const dialer = Find(from);
  if (dialer == nullptr) return;
  const std::string listener_name = NameIn(leader);
  if (!Reaches(dialer->name(), listener_name) || !Reaches(listener_name, dialer->name())) {
    return Silent(from, leader, attempt, detection_ns_,
                  fmt::format("nothing came back for {} ms", detection_ns_ / kMillisecond));
  }
  const auto found = services_.find(listener_name);
  if (found == services_.end()) {
    return Silent(from, leader, attempt, Delay(), "Connection refused");
  }
  SimulatedService& listener = *found->second;
  const LineId id = ++lines_made_;
  Line line{.leader = leader, .ends = {}};
  line.ends[0] = {.instance = from, .name = dialer->name()};
  line.ends[1] = {.instance = listener.instance(), .name = listener_name};
  lines_.emplace(id, std::move(line));
  // The answer goes before whatever the listener tells while it greets, as PeerLink keeps its
  // messages until then. Owned by this function and by the answer on its way.
  const auto status = std::make_shared<Status>();
  Carry(id, Side::kDialer, [this, id, status, attempt](Line& own) {
    SimulatedService* const dialing = Find(own.ends[0].instance);
    if (*status) StartHeartbeat(id, Side::kDialer);
    const std::string place = own.leader;
    if (*status) return dialing->Connected(place, attempt, id);
    lines_.erase(id);
    dialing->Refused(place, attempt, status->error());
  });
  *status = listener.Greet(id, dialer->facts());
  if (*status) StartHeartbeat(id, Side::kListener);
  // Should the answer be lost on its way.
  timeline_.After(kHelloTimeout, [this, id, from, leader, attempt] {
    WhenAwake(from, [this, id, from, leader, attempt] {
      SimulatedService* const dialing = Find(from);
      if (dialing == nullptr || !dialing->IsDialing(leader, attempt)) return;
      Close(id, Side::kDialer);
      dialing->Silent(leader, attempt, "operation timed out");
    });
  });
}

void Lines::Carry(LineId id, Side to, std::function<void(Line& line)> what) {
  Line& line = lines_.at(id);
  End& end = line.at(to);
  end.last_arrival_ns = std::max(timeline_.now() + Delay(), end.last_arrival_ns + 1);
  timeline_.After(end.last_arrival_ns - timeline_.now(), [this, id, to, what = std::move(what)] {
    const auto found = lines_.find(id);
    if (found == lines_.end() || !found->second.at(to).open) return;
    if (!Reaches(found->second.at(Other(to)).name, found->second.at(to).name)) return;
    WhenAwake(found->second.at(to).instance, [this, id, to, what] {
      const auto then = lines_.find(id);
      if (then == lines_.end() || !then->second.at(to).open) return;
      if (Find(then->second.at(to).instance) != nullptr) what(then->second);
    });
  });
}

void Lines::Tell(LineId id, Side from, service::PeerMessage message) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(from).open) return;
  Carry(id, Other(from), [this, id, from, message = std::move(message)](Line& line) {
    SimulatedService* const hearer = Find(line.at(Other(from)).instance);
    if (from == Side::kDialer) {
      hearer->OnNodeMessage(id, message);
    } else {
      hearer->OnLeaderMessage(std::string(line.leader), id, message);
    }
  });
}

void Lines::Close(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return;
  found->second.at(side).open = false;
  if (found->second.at(Other(side)).open) {
    Carry(id, Other(side), [this, id, side](Line&) { Broke(id, Other(side), "end of stream"); });
  }
  EraseIfOver(id);
}

void Lines::EndAt(LineId id, Side side, const Error& error) {
  const Line line = lines_.at(id);
  Close(id, side);
  SimulatedService* const service = Find(line.ends[static_cast<std::size_t>(side)].instance);
  if (service == nullptr) return;
  if (side == Side::kDialer) {
    service->LeaderGone(line.leader, id, error);
  } else {
    service->OnNodeLost(id, error);
  }
}

void Lines::Broke(LineId id, Side side, const std::string& why) {
  EndAt(id, side,
        Error(Code::kPeerLost, fmt::format("the connection to node {} broke: {}",
                                           lines_.at(id).at(Other(side)).name, why)));
}

void Lines::EraseIfOver(LineId id) {
  const auto found = lines_.find(id);
  if (found != lines_.end() && !found->second.ends[0].open && !found->second.ends[1].open) {
    lines_.erase(found);
  }
}

void Lines::StartHeartbeat(LineId id, Side side) {
  lines_.at(id).at(side).heartbeat = service::Heartbeat(detection_ns_, timeline_.now());
  Ask(id, side);
  Watch(id, side);
}

void Lines::Ask(LineId id, Side side) {
  timeline_.After(Delay(), [this, id, side] {
    const auto found = lines_.find(id);
    if (found == lines_.end() || !found->second.at(side).open) return;
    const End& own = found->second.at(side);
    const End& other = found->second.at(Other(side));
    if (!Reaches(own.name, other.name) || !Reaches(other.name, own.name)) return;
    // Its machine is there again, and knows nothing of the line.
    if (Find(other.instance) == nullptr) {
      return WhenAwake(own.instance, [this, id, side] {
        const auto line = lines_.find(id);
        if (line == lines_.end() || !line->second.at(side).open) return;
        if (Find(line->second.at(side).instance) == nullptr) return;
        Broke(id, side, "Connection reset by peer");
      });
    }
    WhenAwake(other.instance, [this, id, side] { Answer(id, side); });
  });
}

void Lines::Answer(LineId id, Side side) {
  timeline_.After(Delay(), [this, id, side] {
    const auto found = lines_.find(id);
    if (found == lines_.end() || !found->second.at(side).open) return;
    if (!Reaches(found->second.at(Other(side)).name, found->second.at(side).name)) return;
    WhenAwake(found->second.at(side).instance, [this, id, side] {
      const auto line = lines_.find(id);
      if (line == lines_.end() || !line->second.at(side).open) return;
      End& own = line->second.at(side);
      own.heartbeat.Answered(timeline_.now());
      timeline_.After(own.heartbeat.interval_ns(), [this, id, side] {
        const auto again = lines_.find(id);
        if (again == lines_.end()) return;
        WhenAwake(again->second.at(side).instance, [this, id, side] { Ask(id, side); });
      });
    });
  });
}

void Lines::Watch(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return;
  const TimeNs wait_ns =
      std::max<TimeNs>(0, found->second.at(side).heartbeat.NextCheck() - timeline_.now());
  timeline_.After(wait_ns, [this, id, side] {
    const auto again = lines_.find(id);
    if (again == lines_.end()) return;
    WhenAwake(again->second.at(side).instance, [this, id, side] { CheckHeartbeat(id, side); });
  });
}

void Lines::CheckHeartbeat(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return;
  if (Find(found->second.at(side).instance) == nullptr) return;
  if (found->second.at(side).heartbeat.Check(timeline_.now())) return Watch(id, side);
  EndAt(id, side,
        Error(Code::kPeerLost, fmt::format("node {} does not answer for {:.1f} s",
                                           found->second.at(Other(side)).name,
                                           static_cast<double>(detection_ns_) / kSecond)));
}

}  // namespace headrace::sim
