// What the processes of a job that may lose ranks and take others in act on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "service/accounts/rank_table.h"
#include "service/session/quorum.h"
#include "service/session/slow_rank.h"
#include "tests/sim/dice.h"
#include "tests/sim/elastic_books.h"
#include "tests/sim/elastic_session.h"
#include "tests/sim/simulated_service.h"
#include "tests/support/hand_driven_cluster.h"

namespace headrace::sim {

class ElasticProcess;

inline constexpr std::uint32_t kElasticUid = 0;  // of all processes
// Within which a silent node is missed.
inline constexpr TimeNs kElasticDetection = kSecond;

// One node, beside what HandDrivenCluster has of it.
struct ElasticNode {
  std::unique_ptr<SimulatedService> service{};  // null: it is dead
  service::RankTable ranks{};                   // as the service's rpc has it
  std::uint64_t attached = 0;                   // sessions of this service
  std::size_t rpc_read = 0;                     // messages for its rpc
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
};

// All that it refers to outlives it.
struct ElasticWorld {
  Dice& dice;
  support::HandDrivenCluster& cluster;
  std::vector<ElasticNode>& nodes;
  ElasticBooks& books;
  EpochChecker& checker;
  std::string job;
  service::QuorumRules rules;
  service::SlowBound slow_bound;  // seconds 0: nobody looks for slow ranks
  std::uint32_t timeout_ms = 600'000;
  bool votes = true;          // an iteration is a transaction
  bool listens = false;       // who joins is given the state while the others train on
  std::uint64_t numbers = 0;  // of connections and questions
  // What is wrong, where a rank of the session's job has not all averages of that iteration.
  std::function<std::optional<std::string>(const ElasticSession&, std::uint64_t iteration)>
      others_have{};
  // A process was refused for good: what is wrong, if it should not have been.
  std::function<std::optional<std::string>(const ElasticProcess&, const std::string& why)>
      on_refused{};
  // Whether the process lives and may be a rank again.
  std::function<bool(std::uint32_t process)> may_go_on{};
  // Likewise, and it has something of the job.
  std::function<bool(std::uint32_t process)> may_hand_over{};
  // A session has ended early, so that operations of its job may fail; of a rank that has left
  // (`orderly`), those that it had posted may still wait for others.
  std::function<void(const ElasticSession&, bool orderly)> disturb{};
};

}  // namespace headrace::sim
