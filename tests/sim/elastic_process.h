// One process of a job that may lose ranks and take others in, as the client library has it: it
// attaches and meets the others; when its job is lost, it asks who is left, and attaches as what it
// is told, again and again until all have come. It knows what it was told, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "service/session/quorum.h"
#include "tests/sim/elastic_training.h"
#include "tests/sim/elastic_world.h"

namespace headrace::sim {

class ElasticProcess {
 public:
  struct Start {
    std::uint32_t index = 0;  // its number among all processes
    std::size_t node = 0;
    service::MemberRole role = service::MemberRole::kMember;
    service::Membership membership{};  // of members: the job as it begins
    std::string rendezvous;
  };
  ElasticProcess(ElasticWorld& world, Start start);

  // Does the next thing that it can do now. Answers what is wrong, if anything.
  std::optional<std::string> Step();
  // Its process ends; `orderly`: after it has left the job.
  void End(bool orderly);
  // Its service has ended the session, as if the process were gone.
  void OnSessionBroken(const Error& error, bool evicted);
  void OnCalled() { training_.OnCalled(); }
  // From now on it does nothing, or goes on.
  void SetStill(bool still) { still_ = still; }
  // By which key its service knows its job now.
  void RefreshKey();
  // Something has befallen it since it met the others last, so that they may go on without it.
  void Harm() { harmed_ = true; }

  std::uint32_t index() const { return start_.index; }
  std::size_t node() const { return start_.node; }
  service::MemberRole role() const { return start_.role; }
  bool IsDead() const { return phase_ == Phase::kDead; }
  // It does nothing any more.
  bool IsOver() const { return phase_ == Phase::kDead || phase_ == Phase::kOver; }
  bool IsIterating() const { return phase_ == Phase::kMet && training_.IsIterating(); }
  bool IsAttached() const { return session_ != nullptr; }
  bool is_harmed() const { return harmed_; }
  bool stands_still() const { return still_; }
  bool was_evicted() const { return evicted_; }
  // Where it asks for its job: the name of a node and a port, or nothing for its own node.
  const std::string& rendezvous() const { return rendezvous_; }
  const ElasticTraining& training() const { return training_; }
  ElasticSession* session() { return session_; }
  std::string Describe() const;

 private:
  enum class Phase : std::uint8_t {
    kOut,      // it has no session, and asks as soon as it may
    kAsking,   // its question is open
    kMeeting,  // attached; the others have to come
    kMet,      // it trains
    kOver,     // it was refused
    kDead,
  };

  ElasticNode& Home() const { return world_.nodes[start_.node]; }
  SimulatedService* Service() const { return Home().service.get(); }
  TimeNs now() const { return world_.cluster.now(); }

  // It has a number among the members, whether or not it has met them.
  bool IsMember() const { return !training_.is_newcomer() || membership_.generation != 0; }
  std::optional<std::string> Ask();
  std::optional<std::string> OnAnswer();
  std::optional<std::string> OnQuorum(const service::Quorum& quorum);
  std::optional<std::string> OnRefused(const Error& error);
  std::optional<std::string> Attach(const service::Membership& told, std::uint32_t after_epoch);
  service::SessionIdentity IdentityOf(const service::Membership& told, std::uint32_t after_epoch,
                                      const support::JobSpec& spec) const;
  void HandIn();
  std::optional<std::string> OnMet();
  std::optional<std::string> HandleEnds();
  // The session goes, and what the process asks; it asks again later.
  std::optional<std::string> Lose();
  void CloseSession(bool orderly, const std::string& cause, bool exited);
  void LeaveQuestion(bool exited);
  void WaitForNextAttempt();

  ElasticWorld& world_;
  Start start_;
  ElasticTraining training_;
  Phase phase_ = Phase::kOut;
  bool still_ = false;
  bool harmed_ = false;
  bool evicted_ = false;

  std::uint32_t member_ = 0;
  service::Membership membership_;  // in which it has met the others last
  std::optional<service::Quorum> told_;
  std::string rendezvous_;
  std::string places_;  // of its job's services, as its service has said
  std::uint32_t epoch_ = 0;
  std::uint64_t client_ = 0;    // of the connection by which it asks; 0: none
  std::uint64_t token_ = 0;     // of its question
  std::uint64_t instance_ = 0;  // of the service that it is connected to
  TimeNs pause_ns_ = 0;
  TimeNs again_ns_ = 0;
  std::string waits_;  // what it was told last

  ElasticSession* session_ = nullptr;
  bool handed_in_ = false;
  bool failed_ = false;  // an operation has
  std::uint64_t barrier_ = 0;
  TimeNs gives_up_ns_ = kNever;
};

}  // namespace headrace::sim
