#include "tests/sim/lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/peers/peer_channel.h"
#include "service/peers/peer_link.h"
#include "tests/sim/simulated_service.h"

namespace headrace::sim {
namespace {

constexpr TimeNs kHelloTimeout = 5 * kSecond;
constexpr TimeNs kAgainAfter = 50 * kMillisecond;
constexpr std::size_t kMessagesPerCall = service::kMessagesPerCallMax;
constexpr std::size_t kBytesPerCall = service::kBytesPerCallMax;

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
    Line& line = lines_.at(id);
    line.at(side).open = false;
    const std::size_t link = line.at(Other(side)).link;
    if (link == 0) continue;
    Carry(id, Other(side), link, [this, id = id, side = side](Line&) {
      Broke(id, Other(side), "Connection reset by peer");
    });
  }
}

bool Lines::Break(const std::string& one, const std::string& other) {
  for (auto& [id, line] : lines_) {
    const bool between = (line.ends[0].name == one && line.ends[1].name == other) ||
                         (line.ends[0].name == other && line.ends[1].name == one);
    if (!between || one == other || !line.ends[0].open || !line.ends[1].open) continue;
    const std::size_t link = line.ends[0].link;
    if (link == 0 || line.ends[1].link != link) continue;
    for (const Side side : {Side::kDialer, Side::kListener}) {
      Carry(id, side, link,
            [this, id = id, side](Line&) { Broke(id, side, "Connection timed out"); });
    }
    return true;
  }
  return false;
}

bool Lines::IsGreeting(const std::string& one, const std::string& other) const {
  return std::ranges::any_of(lines_, [&](const auto& entry) {
    const std::array<End, 2>& ends = entry.second.ends;
    const bool between = (ends[0].name == one && ends[1].name == other) ||
                         (ends[0].name == other && ends[1].name == one);
    return between && !entry.second.greeted;
  });
}

void Lines::CutNetwork(const std::string& one, const std::string& other, std::size_t network) {
  cut_networks_.insert({std::min(one, other), std::max(one, other), network});
}

void Lines::MendNetwork(const std::string& one, const std::string& other, std::size_t network) {
  cut_networks_.erase({std::min(one, other), std::max(one, other), network});
}

SimulatedService* Lines::Find(Instance instance) const {
  for (const auto& [name, service] : services_) {
    if (service->instance() == instance) return service;
  }
  return nullptr;
}

bool Lines::Reaches(const std::string& from, const std::string& to, std::size_t network) const {
  return !gone_.contains(from) && !gone_.contains(to) && !cut_.contains({from, to}) &&
         !cut_networks_.contains({std::min(from, to), std::max(from, to), network});
}

std::vector<std::size_t> Lines::NetworksBetween(const std::string& one,
                                                const std::string& other) const {
  std::vector<std::size_t> networks;
  for (std::size_t network = 0; network < kControlNetworks; ++network) {
    if (Reaches(one, other, network) && Reaches(other, one, network)) networks.push_back(network);
  }
  return networks;
}

Lines::Line* Lines::FindOpen(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return nullptr;
  return Find(found->second.at(side).instance) == nullptr ? nullptr : &found->second;
}

void Lines::AfterAt(LineId id, Side side, TimeNs delay_ns, std::function<void(Line& line)> what) {
  timeline_.After(delay_ns, [this, id, side, what = std::move(what)] {
    const auto found = lines_.find(id);
    if (found == lines_.end()) return;
    WhenAwake(found->second.at(side).instance, [this, id, side, what] {
      if (Line* const line = FindOpen(id, side); line != nullptr) what(*line);
    });
  });
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
  const std::vector<std::size_t> networks = NetworksBetween(dialer->name(), listener_name);
  if (networks.empty()) {
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
  line.ends[0] = {.instance = from, .name = dialer->name(), .link = 1};
  line.ends[1] = {.instance = listener.instance(), .name = listener_name, .link = 1};
  line.connections.push_back({.network = networks[dice_.Below(networks.size())]});
  lines_.emplace(id, std::move(line));
  // The answer goes before whatever the listener tells while it greets, as PeerLink keeps its
  // messages until then. Owned by this function and by the answer on its way.
  const auto status = std::make_shared<Status>();
  Carry(id, Side::kDialer, 1, [this, id, status, attempt](Line& own) {
    SimulatedService* const dialing = Find(own.ends[0].instance);
    own.greeted = status->ok();
    if (*status) StartHeartbeat(id, Side::kDialer);
    const std::string place = own.leader;
    if (*status) return dialing->Connected(place, attempt, id);
    lines_.erase(id);
    dialing->Refused(place, attempt, status->error());
  });
  LoseFormer(id);
  *status = listener.Greet(id, dialer->facts());
  if (*status) StartHeartbeat(id, Side::kListener);
  // Should the answer be lost on its way.
  timeline_.After(kHelloTimeout, [this, id, from, leader, attempt] {
    WhenAwake(from, [this, id, from, leader, attempt] {
      SimulatedService* const dialing = Find(from);
      if (dialing == nullptr) return;
      const bool dials = dialing->IsDialing(leader, attempt);
      const auto made = lines_.find(id);
      // Or it needs nobody there any more.
      if (dials || (made != lines_.end() && !made->second.greeted)) Close(id, Side::kDialer);
      if (dials) dialing->Silent(leader, attempt, "operation timed out");
    });
  });
}

void Lines::Carry(LineId id, Side to, std::size_t link, std::function<void(Line& line)> what) {
  CarryFirst(id, to, link, [to, link, what = std::move(what)](Line& line) {
    if (line.at(to).link == link) what(line);
  });
}

void Lines::CarryFirst(LineId id, Side to, std::size_t link, std::function<void(Line& line)> what) {
  Line& line = lines_.at(id);
  End& end = line.at(to);
  end.last_arrival_ns = std::max(timeline_.now() + Delay(), end.last_arrival_ns + 1);
  timeline_.After(end.last_arrival_ns - timeline_.now(),
                  [this, id, to, link, what = std::move(what)] {
                    const auto found = lines_.find(id);
                    if (found == lines_.end() || !found->second.at(to).open) return;
                    Connection& connection = found->second.connections[link - 1];
                    const bool arrives = Reaches(found->second.at(Other(to)).name,
                                                 found->second.at(to).name, connection.network);
                    bool& stalled = connection.stalled.at(static_cast<std::size_t>(to));
                    stalled = stalled || !arrives;
                    if (stalled) return;
                    WhenAwake(found->second.at(to).instance, [this, id, to, what] {
                      if (Line* const then = FindOpen(id, to); then != nullptr) what(*then);
                    });
                  });
}

void Lines::Tell(LineId id, Side from, service::PeerMessage message) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(from).open) return;
  HR_CHECK(found->second.at(from).unsent.Push(std::move(message)), id);
  Flush(id, from);
}

// As PeerLink::Flush.
void Lines::Flush(LineId id, Side from) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(from).open) return;
  End& end = found->second.at(from);
  if (end.link == 0 || end.sending || end.unsent.empty()) return;
  const std::size_t count = end.unsent.CountOfCall(kMessagesPerCall, kBytesPerCall);
  std::vector<service::PeerMessage> messages;
  for (std::size_t i = 0; i < count; ++i) messages.push_back(end.unsent.at(i));
  end.unsent.MarkSent(count);
  end.sending = true;
  Carry(id, Other(from), end.link,
        [this, id, from, link = end.link, first = end.unsent.first(),
         messages = std::move(messages)](Line&) { Deliver(id, from, link, first, messages); });
}

void Lines::Deliver(LineId id, Side from, std::size_t link, std::uint64_t first,
                    const std::vector<service::PeerMessage>& messages) {
  using Verdict = service::ReceivedNumbers::Verdict;
  const Side to = Other(from);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    // Any of them may end the line.
    Line* const line = FindOpen(id, to);
    if (line == nullptr || line->at(to).link != link) return;
    const Verdict verdict = line->at(to).received.Note(first + i);
    HR_CHECK(verdict != Verdict::kMissing, id, first + i);
    if (verdict == Verdict::kAgain) continue;
    SimulatedService* const hearer = Find(line->at(to).instance);
    if (from == Side::kDialer) {
      hearer->OnNodeMessage(id, messages[i]);
    } else {
      hearer->OnLeaderMessage(std::string(line->leader), id, messages[i]);
    }
  }
  const Line* const line = FindOpen(id, to);
  if (line == nullptr) return;
  Carry(id, from, link, [this, id, from, last = first + messages.size() - 1](Line& own) {
    HR_CHECK(own.at(from).unsent.Acknowledge(last).ok(), id, last);
    own.at(from).sending = false;
    Flush(id, from);
  });
}

void Lines::Close(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return;
  const Side other = Other(side);
  const std::size_t link = found->second.at(other).link;
  if (found->second.at(other).open && link != 0) {
    Carry(id, other, link, [this, id, other](Line& line) {
      EndAt(id, other,
            Error(Code::kUnavailable, fmt::format("node {} takes part in no job here "
                                                  "any more",
                                                  line.at(Other(other)).name)));
    });
  }
  found->second.at(side).open = false;
  EraseIfOver(id);
}

void Lines::Abandon(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return;
  const std::size_t link = found->second.at(side).link;
  const Side other = Other(side);
  found->second.at(side).open = false;
  if (found->second.at(other).open && link != 0) {
    Carry(id, other, link, [this, id, other](Line&) { Broke(id, other, "end of stream"); });
  }
  EraseIfOver(id);
}

void Lines::EndAt(LineId id, Side side, const Error& error) {
  const std::string leader = lines_.at(id).leader;
  SimulatedService* const service = Find(lines_.at(id).at(side).instance);
  Abandon(id, side);
  if (service == nullptr) return;
  if (side == Side::kDialer) {
    service->LeaderGone(leader, id, error);
  } else {
    service->OnNodeLost(id, error);
  }
}

// The connection of that end is gone. The dialer connects anew; the listener looks whether the
// other service lives.
void Lines::Broke(LineId id, Side side, const std::string& why) {
  Line& line = lines_.at(id);
  End& end = line.at(side);
  end.link = 0;
  end.sending = false;
  end.quiet = false;
  end.reached = false;
  end.why = why;
  if (end.heartbeat.WasStopped(timeline_.now())) return EndAt(id, side, CauseAt(line, side));
  const std::uint64_t breaks = ++end.breaks;
  AfterAt(id, side, service::LinkGrace(detection_ns_), [this, id, side, breaks](Line& then) {
    const End& own = then.at(side);
    if (own.breaks == breaks && own.link == 0 && !own.reached) EndAt(id, side, CauseAt(then, side));
  });
  if (side == Side::kDialer) return Redial(id);
  ReachDialer(id);
}

Error Lines::CauseAt(Line& line, Side side) const {
  const std::string& other = line.at(Other(side)).name;
  if (line.at(side).link == 0) {
    return {Code::kPeerLost,
            fmt::format("the connection to node {} broke: {}", other, line.at(side).why)};
  }
  return {Code::kPeerLost, fmt::format("node {} does not answer for {:.1f} s", other,
                                       static_cast<double>(detection_ns_) / kSecond)};
}

// As PeerListener does for a service that begins a channel.
void Lines::LoseFormer(LineId id) {
  std::vector<LineId> former;
  const Line& begins = lines_.at(id);
  for (auto& [number, line] : lines_) {
    const End& own = line.at(Side::kListener);
    const End& other = line.at(Side::kDialer);
    if (number == id || own.instance != begins.ends[1].instance) continue;
    if (!own.open || own.link != 0 || other.name != begins.ends[0].name) continue;
    if (other.instance == begins.ends[0].instance || !own.reached) former.push_back(number);
  }
  for (const LineId number : former) {
    EndAt(number, Side::kListener, CauseAt(lines_.at(number), Side::kListener));
  }
}

void Lines::ReachDialer(LineId id) {
  AfterAt(id, Side::kListener, Delay(), [this, id](Line& line) {
    const End& own = line.at(Side::kListener);
    const End& other = line.at(Side::kDialer);
    if (own.link != 0 || own.reached) return;
    if (NetworksBetween(own.name, other.name).size() < kControlNetworks) {
      // Refused here and silent there says nothing.
      const bool answers =
          !NetworksBetween(own.name, other.name).empty() && services_.contains(other.name);
      if (!answers)
        return AfterAt(id, Side::kListener, kAgainAfter, [this, id](Line&) { ReachDialer(id); });
    }
    const auto there = services_.find(other.name);
    if (there == services_.end()) return EndAt(id, Side::kListener, CauseAt(line, Side::kListener));
    WhenAwake(there->second->instance(), [this, id] {
      if (Line* const then = FindOpen(id, Side::kListener))
        then->at(Side::kListener).reached = true;
    });
  });
}

void Lines::Redial(LineId id) {
  if (std::exchange(lines_.at(id).redials, true)) return;
  AfterAt(id, Side::kDialer, Delay(), [this, id](Line&) { TryToResume(id); });
}

void Lines::TryToResume(LineId id) {
  Line& line = lines_.at(id);
  const End& own = line.at(Side::kDialer);
  if (own.link != 0 && !own.quiet) {
    line.redials = false;
    return;
  }
  const auto again = [this, id](Line&) { TryToResume(id); };
  const std::string& listener = line.at(Side::kListener).name;
  const std::vector<std::size_t> networks = NetworksBetween(own.name, listener);
  const auto there = services_.find(listener);
  if (networks.empty() || (there == services_.end() && networks.size() < kControlNetworks)) {
    return AfterAt(id, Side::kDialer, kAgainAfter, again);
  }
  if (there == services_.end()) {
    // Refused: nothing listens there.
    if (own.link == 0) return EndAt(id, Side::kDialer, CauseAt(line, Side::kDialer));
    return AfterAt(id, Side::kDialer, kAgainAfter, again);
  }
  const std::uint64_t attempt = ++line.attempts;
  for (const std::size_t network : networks) {
    Reach(id, network, there->second->instance(), attempt);
  }
  AfterAt(id, Side::kDialer, detection_ns_ / 4, again);
}

// As PeerReach and PeerDialer::Resume: where an answer comes from first the hello is sent.
void Lines::Reach(LineId id, std::size_t network, Instance listener, std::uint64_t attempt) {
  timeline_.After(Delay(), [this, id, network, listener, attempt] {
    WhenAwake(listener, [this, id, network, listener, attempt] {
      if (FindOpen(id, Side::kDialer) == nullptr) return;
      AfterAt(id, Side::kDialer, Delay(), [this, id, network, listener, attempt](Line& line) {
        if (!Reaches(line.ends[1].name, line.ends[0].name, network)) return;
        if (line.attempts != attempt) return;
        ++line.attempts;
        End& own = line.at(Side::kDialer);
        own.reached = true;
        timeline_.After(Delay(), [this, id, network, listener, received = own.received.last()] {
          WhenAwake(listener, [this, id, network, received] { Resume(id, network, received); });
        });
      });
    });
  });
}

// Has come to the listener, or to whoever listens there now.
void Lines::Resume(LineId id, std::size_t network, std::uint64_t received) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(Side::kDialer).open) return;
  Line& line = found->second;
  if (FindOpen(id, Side::kListener) == nullptr) {
    return AfterAt(id, Side::kDialer, Delay(), [this, id](Line& own) {
      // It does not know the line.
      EndAt(id, Side::kDialer, CauseAt(own, Side::kDialer));
    });
  }
  if (!Reaches(line.ends[0].name, line.ends[1].name, network)) return;
  line.connections.push_back({.network = network});
  const std::size_t link = line.connections.size();
  UseLink(line, Side::kListener, link, received);
  CarryFirst(id, Side::kDialer, link,
             [this, id, link, theirs = line.at(Side::kListener).received.last()](Line& own) {
               if (own.at(Side::kDialer).link >= link) return;
               ++resumes_;
               own.redials = false;
               UseLink(own, Side::kDialer, link, theirs);
               Ask(id, Side::kDialer, link);
               Flush(id, Side::kDialer);
             });
  Ask(id, Side::kListener, link);
  Flush(id, Side::kListener);
}

void Lines::UseLink(Line& line, Side side, std::size_t link, std::uint64_t acknowledged) {
  End& end = line.at(side);
  HR_CHECK(end.unsent.Acknowledge(acknowledged).ok(), link, acknowledged);
  end.link = link;
  end.sending = false;
  end.quiet = false;
  end.heartbeat.Answered(timeline_.now());
}

void Lines::EraseIfOver(LineId id) {
  const auto found = lines_.find(id);
  if (found != lines_.end() && !found->second.ends[0].open && !found->second.ends[1].open) {
    lines_.erase(found);
  }
}

void Lines::StartHeartbeat(LineId id, Side side) {
  lines_.at(id).at(side).heartbeat = service::Heartbeat(detection_ns_, timeline_.now());
  Ask(id, side, lines_.at(id).at(side).link);
  Watch(id, side);
}

// A ping travels as messages do, and waits behind none of them.
void Lines::Ask(LineId id, Side side, std::size_t link) {
  timeline_.After(Delay(), [this, id, side, link] {
    const auto found = lines_.find(id);
    if (found == lines_.end() || !found->second.at(side).open) return;
    const End& own = found->second.at(side);
    const End& other = found->second.at(Other(side));
    Connection& connection = found->second.connections[link - 1];
    if (own.link != link) return;
    bool& stalled = connection.stalled.at(static_cast<std::size_t>(Other(side)));
    stalled = stalled || !Reaches(own.name, other.name, connection.network);
    if (stalled || !Reaches(other.name, own.name, connection.network)) return;
    // Its machine is there again, and knows nothing of the line.
    if (Find(other.instance) == nullptr) {
      return WhenAwake(own.instance, [this, id, side, link] {
        const Line* const line = FindOpen(id, side);
        if (line == nullptr || lines_.at(id).at(side).link != link) return;
        Broke(id, side, "Connection reset by peer");
      });
    }
    WhenAwake(other.instance, [this, id, side, link] { Answer(id, side, link); });
  });
}

void Lines::Answer(LineId id, Side side, std::size_t link) {
  timeline_.After(Delay(), [this, id, side, link] {
    const auto found = lines_.find(id);
    if (found == lines_.end() || !found->second.at(side).open) return;
    Connection& connection = found->second.connections[link - 1];
    bool& stalled = connection.stalled.at(static_cast<std::size_t>(side));
    stalled = stalled || !Reaches(found->second.at(Other(side)).name, found->second.at(side).name,
                                  connection.network);
    if (stalled) return;
    WhenAwake(found->second.at(side).instance, [this, id, side, link] {
      const auto line = lines_.find(id);
      if (line == lines_.end() || !line->second.at(side).open) return;
      End& own = line->second.at(side);
      if (own.link != link) return;
      own.heartbeat.Answered(timeline_.now());
      own.quiet = false;
      timeline_.After(own.heartbeat.interval_ns(), [this, id, side, link] {
        const auto again = lines_.find(id);
        if (again == lines_.end()) return;
        WhenAwake(again->second.at(side).instance, [this, id, side, link] { Ask(id, side, link); });
      });
    });
  });
}

void Lines::Watch(LineId id, Side side) {
  const auto found = lines_.find(id);
  if (found == lines_.end() || !found->second.at(side).open) return;
  const TimeNs wait_ns =
      std::max<TimeNs>(0, found->second.at(side).heartbeat.NextCheck() - timeline_.now());
  AfterAt(id, side, wait_ns, [this, id, side](Line&) { CheckHeartbeat(id, side); });
}

void Lines::CheckHeartbeat(LineId id, Side side) {
  Line& line = lines_.at(id);
  End& own = line.at(side);
  if (!own.heartbeat.Check(timeline_.now())) return EndAt(id, side, CauseAt(line, side));
  if (own.link != 0 && !own.quiet && own.heartbeat.IsQuiet(timeline_.now())) {
    own.quiet = true;
    if (side == Side::kDialer) Redial(id);
  }
  Watch(id, side);
}

}  // namespace headrace::sim
