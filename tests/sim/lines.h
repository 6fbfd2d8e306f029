// The control connections between simulated services, in virtual time. What is said over a line
// comes late, in order, or never; both ends ask all the time whether the other one lives, with the
// service's own Heartbeat; a line ends once at each end, with a cause in the words that the
// service's connections use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/result.h"
#include "service/cluster/heartbeat.h"
#include "service/cluster/peer_messages.h"
#include "tests/sim/dice.h"
#include "tests/sim/timeline.h"

namespace headrace::sim {

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
  // This end leaves, and hears no more.
  void Close(LineId line, Side side);

  TimeNs detection_ns() const { return detection_ns_; }
  std::size_t count() const { return lines_.size(); }

 private:
  struct End {
    Instance instance = 0;
    std::string name;
    bool open = true;
    service::Heartbeat heartbeat{kSecond, 0};  // until the line is there
    TimeNs last_arrival_ns = 0;
  };
  struct Line {
    std::string leader;  // as the dialer calls it
    std::array<End, 2> ends;
    End& at(Side side) { return ends[static_cast<std::size_t>(side)]; }
  };
  static Side Other(Side side) { return side == Side::kDialer ? Side::kListener : Side::kDialer; }

  void Accept(Instance from, const std::string& leader, std::uint64_t attempt);
  void Silent(Instance from, const std::string& leader, std::uint64_t attempt, TimeNs after_ns,
              const std::string& why);
  // Carries `what` to that end of the line, after all that went there before.
  void Carry(LineId id, Side to, std::function<void(Line& line)> what);
  void EndAt(LineId id, Side side, const Error& error);
  void Broke(LineId id, Side side, const std::string& why);
  void EraseIfOver(LineId id);
  void StartHeartbeat(LineId id, Side side);
  void Ask(LineId id, Side side);
  void Answer(LineId id, Side side);
  void Watch(LineId id, Side side);
  void CheckHeartbeat(LineId id, Side side);

  bool Reaches(const std::string& from, const std::string& to) const;
  TimeNs Delay() { return static_cast<TimeNs>(dice_.Between(20'000, 2'000'000)); }

  Timeline& timeline_;
  Dice& dice_;
  TimeNs detection_ns_;
  std::map<std::string, SimulatedService*> services_;  // alive
  std::set<std::string> gone_;                         // machines
  std::set<std::pair<std::string, std::string>> cut_;  // from, to
  std::map<Instance, std::vector<std::function<void()>>> standing_;
  std::map<LineId, Line> lines_;
  LineId lines_made_ = 0;
};

}  // namespace headrace::sim
