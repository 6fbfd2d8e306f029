// The nodes of a simulated job that may lose ranks and take others in, its processes, and what is
// between them. Public, because what befalls them (elastic_faults.h) and what they do and are
// checked for (elastic_simulation.h) both act on all of it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/agreements.h"
#include "tests/sim/dice.h"
#include "tests/sim/elastic_books.h"
#include "tests/sim/elastic_process.h"
#include "tests/sim/elastic_session.h"
#include "tests/sim/elastic_world.h"
#include "tests/sim/lines.h"
#include "tests/sim/timeline.h"
#include "tests/support/hand_driven_cluster.h"

namespace headrace::sim {

// What befalls a job. A run has one kind, or several.
enum class ElasticFault : std::uint8_t {
  kKill,     // processes die, one or several at once
  kLeave,    // a process leaves its job and ends
  kJoin,     // a process comes to the job
  kSpare,    // a process comes, and waits for a lost rank's place
  kEvict,    // a person evicts a rank
  kStill,    // a rank stands still and is evicted
  kMachine,  // a node dies with its processes
  kService,  // a service dies, and begins again
  kBreak,    // a connection between two services breaks
  kRail,     // one of several networks is cut between two nodes, or mended
  kCut,      // nothing gets from one node to another, or both ways, for some seconds
};
inline constexpr std::size_t kElasticFaultsCount = 11;

struct ElasticOptions {
  std::uint64_t seed = 0;
  bool votes = true;                // false: a rank applies averages as soon as it has them
  std::set<ElasticFault> faults{};  // empty: any
};

struct ElasticShape {
  std::set<ElasticFault> faults;
  std::uint32_t nodes = 2;
  std::uint32_t world_size = 2;
  std::uint32_t applicants = 0;  // processes that come later, at most
  std::uint32_t min_world = 1;
  bool is_majority = false;  // min_world is more than half, so that parts cannot go on apart
};

struct ElasticCluster {
  explicit ElasticCluster(const ElasticOptions& options);
  ElasticCluster(const ElasticCluster&) = delete;
  ElasticCluster& operator=(const ElasticCluster&) = delete;

  static std::string NameOf(std::size_t node) { return support::HandDrivenCluster::NameOf(node); }
  void Advance(TimeNs time_ns);
  // What services have said to their rpc, and of their jobs.
  void ReadServices();
  // The node's service begins again, if it is dead.
  void RestartNode(std::size_t node);
  ElasticProcess& AddProcess(ElasticProcess::Start start);
  // Something has befallen all jobs that run.
  void DisturbAll();
  std::string DescribeAll() const;
  void Trace(std::string what);

  std::uint64_t seed;
  Dice dice;
  ElasticShape shape;
  support::HandDrivenCluster cluster;
  Timeline timeline;
  Lines lines;
  Agreements agreements;
  EpochChecker checker;
  ElasticBooks books;
  std::vector<ElasticNode> nodes;
  std::vector<TimeNs> back_ns;  // by node: when its service begins again
  std::set<std::size_t> machines_gone;
  std::set<std::pair<std::size_t, std::size_t>> cut_rails;  // between which nodes
  ElasticWorld world;
  std::deque<std::unique_ptr<ElasticProcess>> processes;
  std::uint64_t evicted = 0;
  std::vector<std::string> trace;

 private:
  support::ClusterSpec AnyCluster();
  ElasticBooks::Rules BookRules();
  void AddService(std::size_t node);
  void ReadRpc(std::size_t node);
  void Disturb(const ElasticSession& session, bool orderly);
  std::optional<std::string> OthersHave(const ElasticSession& session, std::uint64_t iteration);

  std::vector<std::string> wires_;  // names of the nodes' wires, without the rail
  Instance instances_ = 0;
};

}  // namespace headrace::sim
