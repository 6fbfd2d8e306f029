// The channels of control between simulated services, in virtual time, over one connection after
// another: a line is a channel, with the service's own UnsentMessages, ReceivedNumbers and
// Heartbeat. What is said over a line comes late, in order and once. Its connection runs in one of
// several networks; when that is cut or the connection breaks, the dialer connects anew, as
// PeerChannel, PeerDialer and PeerListener do. A line ends once at each end, with a cause in the
// words that the service's connections use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ipc/base/result.h"
#include "service/cluster/heartbeat.h"
#include "service/cluster/peer_messages.h"
#include "service/peers/unsent_messages.h"
#include "tests/sim/dice.h"
#include "tests/sim/timeline.h"

namespace headrace::sim {

// Networks in which each service listens.
inline constexpr std::size_t kControlNetworks = 2;

class SimulatedService;
using LineId = std::uint64_t;
// Names a service from its start to its end; a restarted one has another.
using Instance = std::uint64_t;

// The end of a line: the service that connected, or the one that it connected to.
enum class Side : std::uint8_t { kDialer = 0, kListener = 1 };
enum class Death : std::uint8_t {
  kProcess,  // the machine goes on and says that nobody is there
  kMachine,  // nothing comes back from there
};

class Lines {
 public:
  Lines(Timeline& timeline, Dice& dice, TimeNs detection_ns)
      : timeline_(timeline), dice_(dice), detection_ns_(detection_ns) {}

  // The service can be reached by its name from now on.
  void Add(SimulatedService& service);
  void Kill(const std::string& name, Death death);
  void CutOneWay(const std::string& from, const std::string& to) { cut_.insert({from, to}); }
  // Whether an answer to a first hello is under way between them. It tells the dialer the other
  // addresses of the listener, so nothing else can be tried before.
  bool IsGreeting(const std::string& one, const std::string& other) const;
  // One of the networks, both ways; the others go on.
  void CutNetwork(const std::string& one, const std::string& other, std::size_t network);
  void MendNetwork(const std::string& one, const std::string& other, std::size_t network);
  // Not before both ends of what was connected have missed each other: what was said meanwhile is
  // lost.
  void Mend(const std::string& one, const std::string& other) {
    cut_.erase({one, other});
    cut_.erase({other, one});
  }
  // The process stands still: what it would do or read waits, in order, until it goes on.
  void StandStill(const SimulatedService& service);
  void Resume(const SimulatedService& service);
  // Calls `what` now or when the service goes on; never when it has ended by then.
  void WhenAwake(Instance instance, std::function<void()> what);
  // Ends one connection between the two, if there is one, as a network may for no reason.
  bool Break(const std::string& one, const std::string& other);

  // The service alive under that number; null when it has ended.
  SimulatedService* Find(Instance instance) const;
  // Ends in one call of Connected, Silent or Refused, with the same `attempt`.
  void Dial(SimulatedService& from, const std::string& leader, std::uint64_t attempt);
  void Tell(LineId line, Side from, service::PeerMessage message);
  // This end says goodbye, and hears no more.
  void Close(LineId line, Side side);

  TimeNs detection_ns() const { return detection_ns_; }
  std::size_t count() const { return lines_.size(); }
  // Connections that took the place of one that broke or was silent.
  std::uint64_t resumes_count() const { return resumes_; }

 private:
  struct End {
    Instance instance = 0;
    std::string name;
    bool open = true;
    service::Heartbeat heartbeat{kSecond, 0};  // until the line is there
    TimeNs last_arrival_ns = 0;
    std::size_t link = 0;  // number of the connection that it uses; 0: none
    bool sending = false;
    bool quiet = false;
    bool reached = false;
    std::uint64_t breaks = 0;
    std::string why{};  // the last connection broke
    service::UnsentMessages unsent{};
    service::ReceivedNumbers received{};
  };
  struct Connection {
    std::size_t network = 0;
    // Something to that side was lost, so that nothing behind it comes either.
    std::array<bool, 2> stalled{};
  };
  struct Line {
    std::string leader;  // as the dialer calls it
    std::array<End, 2> ends;
    std::vector<Connection> connections{};  // by their numbers, from 1
    bool greeted = false;                   // the dialer knows that it is there
    bool redials = false;
    std::uint64_t attempts = 0;  // to reach the listener again, and answers
    End& at(Side side) { return ends[static_cast<std::size_t>(side)]; }
  };
  static Side Other(Side side) { return side == Side::kDialer ? Side::kListener : Side::kDialer; }

  void Accept(Instance from, const std::string& leader, std::uint64_t attempt);
  void Silent(Instance from, const std::string& leader, std::uint64_t attempt, TimeNs after_ns,
              const std::string& why);
  // Carries `what` to that end of the line over that connection, after all that went there before.
  void Carry(LineId id, Side to, std::size_t link, std::function<void(Line& line)> what);
  // The same, whether or not that end knows the connection already.
  void CarryFirst(LineId id, Side to, std::size_t link, std::function<void(Line& line)> what);
  // The line, if that end is open and its service lives.
  Line* FindOpen(LineId id, Side side);
  // Calls `what` after that time, unless the end is closed or dead by then.
  void AfterAt(LineId id, Side side, TimeNs delay_ns, std::function<void(Line& line)> what);
  void Flush(LineId id, Side from);
  void Deliver(LineId id, Side from, std::size_t link, std::uint64_t first,
               const std::vector<service::PeerMessage>& messages);
  // The end is left without word.
  void Abandon(LineId id, Side side);
  void Redial(LineId id);
  void TryToResume(LineId id);
  void Reach(LineId id, std::size_t network, Instance listener, std::uint64_t attempt);
  void Resume(LineId id, std::size_t network, std::uint64_t received);
  void UseLink(Line& line, Side side, std::size_t link, std::uint64_t acknowledged);
  void ReachDialer(LineId id);
  void LoseFormer(LineId id);
  // Why the line is over at that end, if it is now.
  Error CauseAt(Line& line, Side side) const;
  std::vector<std::size_t> NetworksBetween(const std::string& one, const std::string& other) const;
  void EndAt(LineId id, Side side, const Error& error);
  void Broke(LineId id, Side side, const std::string& why);
  void EraseIfOver(LineId id);
  void StartHeartbeat(LineId id, Side side);
  void Ask(LineId id, Side side, std::size_t link);
  void Answer(LineId id, Side side, std::size_t link);
  void Watch(LineId id, Side side);
  void CheckHeartbeat(LineId id, Side side);

  bool Reaches(const std::string& from, const std::string& to, std::size_t network) const;
  TimeNs Delay() { return static_cast<TimeNs>(dice_.Between(20'000, 2'000'000)); }

  Timeline& timeline_;
  Dice& dice_;
  TimeNs detection_ns_;
  std::map<std::string, SimulatedService*> services_;                         // alive
  std::set<std::string> gone_;                                                // machines
  std::set<std::pair<std::string, std::string>> cut_;                         // from, to
  std::set<std::tuple<std::string, std::string, std::size_t>> cut_networks_;  // both ways
  std::map<Instance, std::vector<std::function<void()>>> standing_;
  std::map<LineId, Line> lines_;
  LineId lines_made_ = 0;
  std::uint64_t resumes_ = 0;
};

}  // namespace headrace::sim
