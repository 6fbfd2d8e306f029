// A seeded, single-threaded run of a whole cluster: on each node the service's unchanged data path
// and its part in the membership, between them a network and control lines in virtual time, on top
// jobs whose ranks act at random, and faults.
//
// What is checked: each operation ends once on each rank, with the bytes of the reference; where
// nothing was wrong it ends well; where something was, every rank that waits has its end within a
// second of the detection, with a text that names who is to blame, and jobs that have no part in it
// do not notice; nodes of a job agree on all there is to agree on; nothing that does not belong to
// a job reaches it; memory, credits, rows, links and lines all come back. Some jobs train: their
// gradients move by plans of the real planner, each iteration ends with its own sums, all nodes
// change plans at the same iteration, and none stands still for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/base/steering.h"
#include "tests/sim/agreements.h"
#include "tests/sim/completion_checker.h"
#include "tests/sim/dice.h"
#include "tests/sim/lines.h"
#include "tests/sim/messages.h"
#include "tests/sim/rank.h"
#include "tests/sim/simulated_service.h"
#include "tests/sim/timeline.h"
#include "tests/sim/training.h"
#include "tests/support/hand_driven_cluster.h"

namespace headrace::sim {

inline constexpr TimeNs kDetection = 3 * kSecond;
inline constexpr TimeNs kStandstillMax = kDetection + 4 * kSecond;

enum class ClusterMood : std::uint8_t {
  kCalm,        // slow and uneven: every operation must end well
  kQuarrel,     // ranks disagree, post bad records
  kLoss,        // ranks are killed or leave
  kNodes,       // nodes are killed and come back, links are cut, connections break
  kStrangers,   // messages come twice, from nobody, of old epochs; a node has another plan
  kSteering,    // people pause, resume, drain, cancel and weigh jobs
  kReconnect,   // services are killed and begin again, connections break; ranks come back
  kStandstill,  // a node's service stands still for a while
  kRails,       // one of several networks is cut and mended: every operation must end well
  kSlow,        // a rank is slow and evicted; the others go on, and it joins again
  kControl,     // a network of control is cut and mended, connections break: likewise
};
inline constexpr std::size_t kClusterMoodsCount = 11;

class ClusterSimulation {
 public:
  ClusterSimulation(std::uint64_t seed, ClusterMood mood);

  // The first promise that was found broken, if any.
  std::optional<std::string> Run();
  const std::vector<std::string>& trace() const { return trace_; }
  const CompletionChecker& checker() const { return checker_; }
  const Messages& messages() const { return messages_; }
  const Agreements& agreements() const { return agreements_; }
  const Lines& lines() const { return lines_; }
  // Jobs that have gone on with other ranks than before.
  std::uint64_t decisions() const { return decisions_; }

 private:
  struct RankSlot {
    std::size_t node = 0;
    std::unique_ptr<Rank> rank{};  // null before it attaches
    service::SessionIdentity identity{};
    std::unique_ptr<Training> training{};  // null where its job has no gradients
    bool dead = false;                     // with its node
    bool exited = false;                   // and does not come back as that rank
    std::uint32_t after_epoch = 0;         // in which the rank was before; 0: it begins
    std::uint32_t epoch = 0;               // in which it is, as far as its service knows
    bool IsLive() const { return rank && !dead && !rank->closed; }
    std::size_t open() const { return rank->open() + (training ? training->open() : 0); }
  };
  struct Job {
    JobId id;  // in the checker; nodes have numbers of their own
    std::string name;
    std::uint32_t world_size = 1;
    std::optional<std::size_t> leader{};  // none: all of its ranks are on one node
    std::vector<RankSlot> slots{};        // by rank
    std::optional<Model> model{};         // none: it has no gradients that move by plans
    std::map<std::size_t, JobId> numbers{};
    TimeNs deadline_ns = kNever;  // by when every rank that waits has its end
    bool served = false;          // servers sum
    Values values = Values::kExact;
    std::optional<std::size_t> life_before{};  // whose ranks come back as this job's
    bool came_back = false;                    // its ranks have, as another job's
    std::vector<std::uint32_t> members{};      // by rank, as was decided; empty: nothing was
    std::uint32_t generation = 0;              // of that decision
    // What befell it was before it had begun, and may never be found: two nodes between which only
    // announcements of sends go.
    bool ends_by_timeouts = false;
    bool paused = false;
    TimeNs still_from_ns = kNever;  // nothing of it ends any more while it is paused
    std::uint64_t ended_then = 0;
    std::uint64_t posted_then = 0;  // by the rank that had posted most when it was paused
  };

  void AddJob(const std::string& name, const std::vector<std::size_t>& nodes);
  void Enroll(Job job);
  void AddService(std::size_t node);
  void Advance(TimeNs time_ns);

  // One random action each; they may do nothing when there is nobody to do it.
  std::optional<std::string> Act();
  void ActBadly();
  std::optional<std::string> AttachRank(Job& job, std::uint32_t rank);
  void PostSome();
  void PostOne(Job& job, RankSlot& slot);
  // Sends and receives, within a node and between nodes.
  void PostMessages(Job& job, RankSlot& slot);
  // Posts the other side of every message that is open, where its rank is there.
  std::optional<std::string> AnswerMessages();
  std::optional<std::string> ReceiveWhatWasSent();
  void LoseRank();
  // `exited`: it cannot come back as that rank.
  void CloseRank(RankSlot& slot, bool orderly, bool exited = false);
  void HarmNodes();
  void KillNode(std::size_t node);
  void RestartNode(std::size_t node);
  void CutLink(std::size_t one, std::size_t other);
  // All ranks post what the one that is furthest ahead has posted, as far as there is room.
  void PostWhatIsMissing(Job& job);
  void BreakLine(std::size_t one, std::size_t other);
  void CutRail(std::size_t one, std::size_t other);
  // Only the rail that this run harms, so that the others always work.
  void CutOrMendRail();
  void HarmControl();
  void CutOrMendControl(std::size_t one, std::size_t other);

  // ---- people ----
  void SteerSomething();
  void SteerJob(Job& job, SteeringKind kind, std::uint64_t value);
  void ResumeAll();
  std::optional<std::string> CheckPaused(Job& job);
  static std::uint64_t MostPosted(const Job& job);
  // Nothing of a job that is paused moves or times out, however long that is.
  std::optional<std::string> PauseForLong();

  // ---- reconnect ----
  // A job that has failed goes on under its name, as another one in the checker.
  void BeginReconnects(double percent);
  bool CanReconnect(const Job& job) const;
  // Whether the rank can attach again: it has lost its session, and none of those that are left on
  // its node still hold on to theirs.
  bool LeavesLifeBefore(Job& job, std::uint32_t rank);
  std::optional<std::string> ReconnectAll();
  std::optional<std::string> CheckEpochs() const;

  // ---- slow ranks ----
  // A job at the end of the run has a rank that is slow, or none; what comes of it.
  std::optional<std::string> EvictSlow();
  // One iteration, in which that rank takes `factor` times as long as the others.
  std::optional<std::string> IterateSlowly(Job& job, std::uint32_t slow, std::uint64_t factor);
  // One iteration that the rank does not take part in before the others have waited for as long as
  // the bound and a little longer, or it is evicted.
  std::optional<std::string> AwaitStalled(Job& job, std::uint32_t stalled, std::uint32_t bound_s,
                                          bool& evicted);
  // Whether the rank was evicted; who else was is wrong.
  std::optional<std::string> CheckEvicted(Job& job, std::uint32_t slow, bool& evicted);
  // The ranks that are left, and the one that was evicted, if it comes again now, are told who goes
  // on, and do so as another job in the checker. Returns its place among the jobs.
  struct Asker {
    std::size_t node = 0;
    service::AskQuorum ask{};
    bool asked = false;
    std::optional<service::Quorum> answer{};
  };
  std::optional<std::string> GoOnAsDecided(std::size_t before, std::optional<std::size_t> joiner);
  std::vector<Asker> AskersOf(const Job& job, std::optional<std::size_t> joiner);
  std::optional<std::string> Decide(std::vector<Asker>& askers);
  std::optional<std::string> CheckDecision(const Job& before, const std::vector<Asker>& askers,
                                           bool joins) const;
  std::optional<std::string> EnrollDecided(std::size_t before, const std::vector<Asker>& askers);

  // ---- standstill ----
  std::optional<std::string> StandStill();
  std::optional<std::string> Intrude();

  // ---- gradients ----
  std::optional<std::string> HandIn(Job& job, RankSlot& slot);
  bool PostGradient(Job& job, RankSlot& slot);
  std::optional<std::string> TrainSome();
  void RequestPolicy();
  std::optional<std::string> WarmUp(Job& job);
  // Lets all ranks do that many iterations; a job that nothing has befallen does not stand still.
  std::optional<std::string> Train(Job& job, std::uint64_t iterations);
  std::uint64_t IterationsBegun(const Job& job) const;
  bool HasGradientsOpen(const Job& job) const;
  void ShowPlans();

  // Something has befallen the job, and this is the name to be found in its errors. `within_ns`:
  // from now until every rank that waits has its end; kNever: not before it tries to go on.
  void Blame(Job& job, const std::string& name, TimeNs within_ns);
  bool HasFormed(const Job& job) const;
  // Nobody is missing any more, on its one node or on all.
  bool HasBegun(const Job& job) const;
  // A rank has posted although something has befallen the job. Where a rank is missing, or was
  // then, what it has posted may wait until it times out.
  void OnAnswered(Job& job);
  bool TakesPart(const Job& job, std::size_t node) const;
  bool Serves(const Job& job, std::size_t node) const;
  // The service of the node is there and runs.
  bool Runs(std::size_t node) const { return services_[node] && stands_still_ != node; }
  bool HasServersFor(std::size_t leader) const;
  bool HasRanks(const Job& job, std::size_t node) const;

  std::optional<std::string> Check();
  std::optional<std::string> Finish();
  std::optional<std::string> GoOn();
  std::optional<std::string> CatchUp(Job& job, std::uint64_t most);
  std::optional<std::string> BeginAgain();
  std::optional<std::string> AdvanceAndCheck(TimeNs time_ns, TimeNs step_ns);
  std::optional<std::string> CheckAllEnded();
  std::optional<std::string> CheckAllReturned();
  std::optional<std::string> CheckReturned(std::size_t node);

  template <typename Visit>
  void ForEachLive(Visit visit);
  std::string NameOf(std::size_t node) const { return support::HandDrivenCluster::NameOf(node); }
  support::ClusterSpec AnyCluster();
  std::uint32_t Timeout() const;
  // Nothing happens that an operation may notice.
  bool IsCalm() const {
    return mood_ == ClusterMood::kCalm || mood_ == ClusterMood::kRails ||
           mood_ == ClusterMood::kControl || mood_ == ClusterMood::kSlow;
  }
  void Trace(std::string what);

  std::uint64_t seed_;
  ClusterMood mood_;
  Dice dice_;
  bool measures_;
  support::HandDrivenCluster cluster_;
  Timeline timeline_;
  Lines lines_;
  Agreements agreements_;
  CompletionChecker checker_;
  Messages messages_{Messages::Ends::kEachForItself};
  std::vector<std::unique_ptr<SimulatedService>> services_;  // by node; null: dead
  std::vector<std::string> wires_;                           // their names, without the rail
  std::vector<transport::Algorithm> algorithms_;             // that they have as leaders
  std::map<std::size_t, std::size_t> servers_;  // nodes without ranks, and their leader
  std::optional<std::size_t> stands_still_;
  TimeNs went_on_ns_ = 0;              // the last that stood still
  std::vector<std::size_t> sessions_;  // attached, by node
  std::set<std::size_t> harmed_;       // nodes with a link that is cut
  std::optional<std::size_t> salted_;
  std::set<std::pair<std::size_t, std::size_t>> cut_rails_;  // kRails: between which nodes
  struct ControlCut {
    std::optional<std::size_t> network{};  // none: all go
    TimeNs since_ns = -kDetection;
  };
  std::map<std::pair<std::size_t, std::size_t>, ControlCut> cut_control_;  // between nodes
  bool killed_ = false;
  Instance instances_ = 0;
  std::uint64_t decisions_ = 0;
  std::uint64_t questions_ = 0;  // kSlow: tokens and connections
  std::vector<Job> jobs_;
  std::vector<std::string> trace_;
};

}  // namespace headrace::sim
