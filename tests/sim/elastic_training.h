// What one process trains, from epoch to epoch: posts the gradients of each iteration and applies
// their averages; after a loss it brings the iteration that was under way to an end together with
// those that remain, by operations of their new job alone.
//
// An iteration is applied once all ranks have all of its averages, which a barrier behind the
// gradients says. After a loss averages that some have go to the others; what nobody has is summed
// again over those that remain. Who comes later has no part in such an iteration, and is given the
// state after it; or it listens: it gives nothing to the iterations that follow and has their
// averages, the state travels beside the first of them, and it contributes when a rank says that
// all was sent. The rules are those of the torch client's Recovery, written anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/elastic_world.h"

namespace headrace::sim {

class ElasticTraining {
 public:
  // `newcomer`: it has nothing of the job yet.
  ElasticTraining(ElasticWorld& world, std::uint32_t process, bool newcomer)
      : world_(world),
        process_(process),
        newcomer_(newcomer),
        averages_(world.books.tensors_count()) {}

  // All ranks of the epoch have met.
  void Enter(ElasticSession& session);
  // The session is over. What has ended well by now is kept.
  void Leave();
  // Ends that the session has noticed.
  void OnEnd(const ElasticSession::End& end);
  // Does the next thing that it can do now. Answers what is wrong, if anything. May be called once
  // it has entered, and no operation has failed.
  std::optional<std::string> Step();
  // Some rank was called to let others in: those that have this iteration are to meet.
  bool WantsToMeet() const { return meets_ && !listening_; }
  // No gradient of its next iteration is posted.
  bool IsBetween() const { return phase_ == Phase::kTraining && !begun_; }
  // Others wait to join.
  void OnCalled() { called_ = true; }

  // Ranks have told each other how far they are.
  bool has_compared() const { return phase_ != Phase::kOut && phase_ != Phase::kComparing; }
  bool is_newcomer() const { return newcomer_; }
  // No rank is left that has anything of the job.
  bool has_lost_all() const { return lost_all_; }
  bool IsIterating() const { return phase_ == Phase::kTraining || phase_ == Phase::kClosing; }
  std::uint64_t applied() const { return applied_; }
  // How far it is: averages that it has noticed, of all iterations.
  std::uint64_t Progress() const;
  // Whether it has all averages of that iteration, as far as it has noticed, or has applied them.
  bool HasAll(std::uint64_t iteration) const;
  std::string Describe() const;

  struct Counts {
    std::uint64_t summed_again = 0;  // gradients
    std::uint64_t handed_on = 0;     // averages that one had and another lacked
    std::uint64_t beside = 0;        // gradients that were summed again beside newcomers
    std::uint64_t caught_up = 0;     // ranks that were an iteration behind
    std::uint64_t received = 0;      // states that newcomers were given
    std::uint64_t listened = 0;      // ... while the others trained on
  };
  const Counts& counts() const { return counts_; }

 private:
  enum class Phase : std::uint8_t {
    kOut,         // its ranks do not meet
    kComparing,   // they tell each other how far they are
    kRecovering,  // they do what follows from it
    kTraining,    // gradients are being posted
    kClosing,     // ... and have to end, on all ranks
  };
  // What a rank says of itself, of kFacts numbers.
  struct Facts {
    std::uint64_t applied = 0;
    bool newcomer = false;
    bool begun = false;        // the next iteration
    std::uint64_t world = 0;   // of how many ranks its averages of that are
    std::uint64_t having = 0;  // bit t: it has the average of tensor t
  };
  struct Work {
    enum class Kind : std::uint8_t { kHandOn, kSumAgain, kSumBeside, kVote, kApply, kHandOver };
    Kind kind = Kind::kVote;
    std::uint32_t tensor = 0;
    std::uint32_t root = 0;  // rank
  };

  std::size_t tensors_count() const { return averages_.size(); }
  std::uint64_t AllTensors() const { return (std::uint64_t{1} << tensors_count()) - 1; }
  bool HasEnded(std::uint64_t number) const { return ended_.contains(number); }
  void PostFacts();
  std::optional<std::string> Compare();
  std::vector<Facts> ReadFacts() const;
  void CompareLevel(std::vector<Facts>& all);
  std::optional<std::string> CompareUneven(const std::vector<Facts>& all, std::uint64_t newest);
  void DropPartial(std::vector<Facts>& all);
  // Those of the averages that are made now.
  std::uint32_t ContributorsNow() const;

  std::optional<std::string> DoWork();
  void BeginWork(const Work& work);
  bool HasDone(const Work& work) const;
  std::optional<std::string> EndWork(const Work& work);
  std::optional<std::string> EndHandOn(const Work& work);
  std::optional<std::string> EndHandOver(const Work& work);
  void EndBeside(const Work& work);
  Planned Wide(std::uint32_t tensor) const;
  std::vector<std::byte> PackState() const;
  std::optional<std::string> Apply();
  std::optional<std::string> CheckOthersHaveAll() const;
  std::uint32_t ContributorsCount() const;
  std::vector<std::byte> GradientOf(std::uint32_t tensor) const;
  void PostPiece();
  std::optional<std::string> ReadPiece();
  std::optional<std::string> Seat();

  void BeginIteration();
  std::optional<std::string> Train();
  std::optional<std::string> CloseIteration();
  void PostGradients(std::uint64_t zeros);

  ElasticWorld& world_;
  std::uint32_t process_;
  Phase phase_ = Phase::kOut;
  ElasticSession* session_ = nullptr;
  std::vector<std::uint32_t> old_;  // ranks that are no newcomers
  std::deque<Work> work_;
  bool working_ = false;           // the first of them has begun
  std::set<std::uint64_t> ended_;  // collectives that have ended well
  std::uint64_t collective_ = 0;   // that is awaited now
  std::vector<std::byte> result_;
  std::uint64_t flag_ = 0;  // the collective that says whether anybody was called
  bool called_ = false;
  bool meets_ = false;
  bool lost_all_ = false;

  bool listening_ = false;   // there are newcomers, which contribute nothing yet
  bool has_sent_ = false;    // they were sent the state, or are sent it beside this iteration
  std::uint64_t piece_ = 0;  // the collective that carries it; 0: none does
  std::vector<std::byte> piece_result_;
  bool seats_ = false;  // from the next iteration on they contribute

  bool newcomer_;
  std::uint64_t applied_ = 0;
  std::uint64_t state_ = 0;
  bool begun_ = false;                  // the next iteration
  std::vector<Average> averages_;       // of it
  std::uint64_t averaged_ = 0;          // the iteration whose averages are of ...
  std::uint64_t averaged_world_ = 0;    // ... so many ranks
  std::uint64_t layout_iteration_ = 0;  // of this epoch
  std::uint64_t zeros_ = 0;             // tensors to which it gives nothing
  std::vector<std::uint32_t> order_;    // in which the gradients are posted
  std::size_t posted_ = 0;
  std::size_t open_ = 0;  // gradients
  Counts counts_;
};

}  // namespace headrace::sim
