// A seeded, single-threaded run of the service's data path: jobs and ranks act at random, the clock
// is made up, and after each step checkers look for a broken promise.
//
// What is checked: each operation ends once on each rank, in its time, well on all ranks or on
// none, with the bytes of the reference, or with a text that names a cause; the lane uses no memory
// of an operation that has ended or of a session that was discarded; credits, board rows, doorbells
// and sessions all come back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/completion_checker.h"
#include "tests/sim/dice.h"
#include "tests/sim/rank.h"
#include "tests/support/hand_driven_node.h"

namespace headrace::sim {

// How the ranks behave; each mood does also what the ones before it do.
enum class Mood : std::uint8_t {
  kCalm,     // slow and uneven, but all agree and stay: every operation must end well
  kQuarrel,  // ranks disagree, post bad records, come too late
  kLoss,     // ranks are killed or leave, links fail, segments are released, the service drains
  kHostile,  // ranks write garbage into their rings or overrun them
};

class Simulation {
 public:
  // With GPUs some jobs have their memory there, and have the service await words of streams.
  Simulation(std::uint64_t seed, Mood mood, const transport::Gpus* gpus = nullptr);

  // The first promise that was found broken, if any.
  std::optional<std::string> Run();
  // The last actions, for whoever replays a seed.
  const std::vector<std::string>& trace() const { return trace_; }
  const CompletionChecker& checker() const { return checker_; }
  const Messages& messages() const { return messages_; }

 private:
  struct Job {
    support::JobSpec spec;
    bool on_gpus = false;
    std::vector<std::unique_ptr<Rank>> ranks;  // null before it attaches
  };

  // One random action each; they may do nothing when there is nobody to do it.
  void Act();
  void ActOnNode();
  void ActBadly();
  void Attach();
  void MakeRank(Job& job, std::uint32_t rank);
  void ReachWords();
  void ReachAllWords();
  void PostSome();
  void PostMessages();
  // Posts the other side of every send and receive that is open, until none is.
  std::optional<std::string> AnswerMessages();
  void Close(bool orderly);
  void Garble();
  void ReleaseSegment();
  void StartDrain();
  void SettleAndMark();

  // What control would do with dispatch's messages.
  std::optional<std::string> AnswerControl();
  std::optional<std::string> Check();
  // Whether the lane got each job's stages in the order of the job's operations. With memory of
  // GPUs they go in the order in which streams come to them.
  std::optional<std::string> CheckOrder();
  std::optional<std::string> CheckLaneIsEmpty(std::size_t lane) const;
  std::optional<std::string> CheckTimes();
  // Lets everything that is open end, then closes all sessions.
  std::optional<std::string> Finish();
  std::optional<std::string> FinishCalmly();
  std::optional<std::string> CheckAllEnded();
  std::optional<std::string> CheckAllReturned();

  // A rank that is attached and behaves, at random; null if there is none.
  Rank* AnyRank();
  template <typename Visit>
  void ForEachRank(Visit visit);
  std::uint32_t Timeout();
  void Trace(std::string what) { trace_.push_back(std::move(what)); }
  void TurnDispatch();
  void Pass(TimeNs time_ns);

  std::uint64_t seed_;
  Mood mood_;
  Dice dice_;
  const transport::Gpus* gpus_;
  bool shared_memory_;
  CompletionChecker checker_;
  Messages messages_;
  support::HandDrivenNode node_;
  std::vector<Job> jobs_;
  std::size_t answered_ = 0;  // control messages looked at
  std::size_t ordered_ = 0;   // transfers looked at
  // Position, by job and whether the operation only copies.
  std::map<std::pair<std::uint64_t, bool>, std::uint64_t> last_started_;
  std::size_t sessions_ = 0;
  std::optional<TimeNs> drain_deadline_;
  std::vector<std::string> trace_;
  TimeNs dispatched_ns_ = 0;
};

}  // namespace headrace::sim
