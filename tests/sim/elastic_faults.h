// What befalls a simulated job that may lose ranks and take others in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/elastic_cluster.h"

namespace headrace::sim {

class ElasticFaults {
 public:
  // `run` outlives it.
  explicit ElasticFaults(ElasticCluster& run);

  // One fault of the kind; nothing where it would befall nobody.
  void Harm(ElasticFault fault);
  // What was to last until now is over. To be called often.
  void EndWhatIsOver();
  // Whoever stands still goes on.
  void GoOn();
  bool somebody_stands_still() const { return goes_on_ns_ != kNever; }
  // Links are mended, and services begin again; some machines stay away.
  void Mend();
  // Sends a message that nobody may take; what is wrong, if somebody does.
  std::optional<std::string> Intrude();

  bool has_killed() const { return killed_; }  // a service
  // The job has ended because fewer were left than may go on.
  bool gave_up() const { return gave_up_; }
  std::uint64_t strangers_count() const { return strangers_; }

 private:
  ElasticProcess* AnyProcess(bool attached);
  // The one that is furthest, or any.
  ElasticProcess* Victim();
  std::size_t AnyNode();
  bool MayLose(std::size_t count);
  void KillSome();
  void LeaveOne();
  void Apply(service::MemberRole role);
  void EvictOne();
  void StandStill();
  void KillNode(std::size_t node, bool machine);
  void BreakLine();
  void CutOrMendControl(std::size_t one, std::size_t other);
  void CutOrMendRail();
  void CutLink();
  void MendLink();
  std::optional<std::string> OnRefused(const ElasticProcess& process, const std::string& why);

  ElasticCluster& run_;
  std::uint32_t applicants_left_;
  TimeNs goes_on_ns_ = kNever;  // when who stands still goes on
  // What is cut now: names on the network, and the nodes.
  struct Cut {
    std::size_t one = 0;
    std::size_t other = 0;
    std::vector<std::pair<std::string, std::string>> wires{};
    TimeNs until_ns = 0;
  };
  std::optional<Cut> cut_;
  struct ControlCut {
    std::optional<std::size_t> network{};  // none: all go
    TimeNs since_ns = -kElasticDetection;
  };
  std::map<std::pair<std::size_t, std::size_t>, ControlCut> control_cuts_;  // between nodes
  bool killed_ = false;
  bool gave_up_ = false;
  std::uint64_t strangers_ = 0;
};

}  // namespace headrace::sim
