// What control does for jobs of several nodes, and for the plans of all jobs, on one simulated
// node: the service's own Leader and Follower, driven as service/peers drives them, over simulated
// lines in the place of RPC.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "service/cluster/follower.h"
#include "service/cluster/leader.h"
#include "tests/sim/agreements.h"
#include "tests/sim/lines.h"
#include "tests/support/hand_driven_node.h"
#include "transport/exchange/wire.h"

namespace headrace::sim {

// The header of a sum as the other nodes of a job with these links send them, at a position that
// nobody posts.
transport::MessageHeader HeaderAmong(const transport::GroupOptions& links);

class SimulatedService {
 public:
  struct Options {
    std::string name;
    std::vector<std::string> wire_addresses;  // by rail
    Instance instance = 0;
    std::uint64_t hash_salt = 0;
    std::uint64_t block_bytes = 1024;
    transport::Algorithm algorithm = transport::Algorithm::kAuto;
    plan::Policy policy = plan::Policy::kExact;
    bool measures = false;  // its lanes really do; else their lines are made up
    std::string serves{};   // not empty: it is a server, for the jobs that meet there
    // Other services are told how it can be reached, so that jobs may lose their leader.
    bool can_lead_next = false;
  };
  struct World {
    Timeline& timeline;
    Lines& lines;
    Agreements& agreements;
    Dice& dice;
  };

  SimulatedService(const Options& options, support::HandDrivenNode& node, const World& world);

  const std::string& name() const { return options_.name; }
  Instance instance() const { return options_.instance; }
  const service::NodeFacts& facts() const { return facts_; }
  const service::Leader& leader() const { return leader_; }
  const service::Follower& follower() const { return follower_; }

  // To be called once others can reach it.
  void Start();

  // ---- from the leases ----
  Status CheckAttach(const support::JobSpec& job, std::uint32_t rank) const;
  void OnRankAttached(const service::SessionIdentity& identity);
  void OnRankEnded(const service::SessionIdentity& identity, bool orderly, const std::string& cause,
                   bool exited);
  // A new job of ranks on this node.
  JobId NextJob() { return JobId{++jobs_opened_}; }

  // ---- from sessions and people ----
  Status CheckLayout(const service::SessionIdentity& identity, const service::Layout& layout,
                     std::optional<plan::Policy> policy) const;
  void OnLayoutSet(const service::SessionIdentity& identity,
                   std::shared_ptr<const service::Layout> layout,
                   std::optional<plan::Policy> policy);
  // Whether there is such a job here.
  bool SetPolicy(const std::string& job, plan::Policy policy);
  bool Steer(const std::string& job, const service::Steering& steering);
  // Who is left of a job; answered once.
  void Ask(const service::AskQuorum& question);
  std::optional<service::QuorumAnswered> PopAnswer(service::RequestToken token);
  // The connection over which a process asked is closed.
  void OnQuestionLeft(const service::QuorumClientLost& lost);

  // ---- from the lines ----
  Status Greet(LineId line, const service::NodeFacts& facts);
  void OnNodeMessage(LineId line, const service::PeerMessage& message);
  void OnNodeLost(LineId line, const Error& error);
  void Connected(const std::string& leader, std::uint64_t attempt, LineId line);
  bool IsDialing(const std::string& leader, std::uint64_t attempt) const;
  void Silent(const std::string& leader, std::uint64_t attempt, const std::string& why);
  void Refused(const std::string& leader, std::uint64_t attempt, const Error& error);
  void OnLeaderMessage(const std::string& leader, LineId line, const service::PeerMessage& message);
  void LeaderGone(const std::string& leader, LineId line, const Error& error);

  // ---- from the node ----
  // Sees to it that what dispatch and the lanes have said is read, soon.
  void NoticeMessages();

  // ---- what there is to see ----
  bool HasFormed(JobId job) const { return formed_.contains(job); }
  bool HasFailed(JobId job) const { return failed_.contains(job); }
  // As its dispatch was told; null before.
  const service::JobNodes* NodesOf(JobId job) const;
  // By which its nodes know each other's messages, also when its links are closed again.
  std::optional<std::uint64_t> KeyOf(JobId job) const;
  // Since the last call: jobs that have failed, and those whose ranks are to let others in.
  std::vector<service::JobFailed> DrainFailures() { return std::exchange(failures_, {}); }
  std::vector<JobId> DrainCalls() { return std::exchange(calls_, {}); }
  // Where the services of the job are, as its ranks were told; empty: they were not.
  std::string PlacesOf(JobId job) const {
    const auto found = places_.find(job);
    return found == places_.end() ? std::string() : found->second;
  }
  // The links of the job, while they are open.
  std::optional<transport::GroupOptions> LinksOf(JobId job) const;

 private:
  struct Dialer {
    bool needed = true;
    std::uint64_t attempt = 0;  // 0: none is under way
    LineId line = 0;            // 0: there is none
    TimeNs delay_ns = 0;
    TimeNs name_taken_since_ns = kNever;
  };

  void ReadMessages();
  void Act();
  // As the alarm of peers: what waits for time is looked at when it is due.
  void SetAlarm();
  void Execute(const service::ToLeader& action);
  void Execute(const service::ToDispatch& action);
  void Execute(const service::ToLane& action);
  void Execute(const service::ToWatch& action);
  void Execute(const service::ReachLeader& action);
  void Execute(const service::LeaveLeader& action);
  void Execute(const service::NoteRefusal& action);
  void Execute(const service::Answered& action);
  void Execute(const service::QuorumAnswered& action);
  void Execute(const service::MembersWait& action);
  void Execute(const service::JobPlaced& action);
  void Execute(const service::SessionBroken& action);
  void SweepDialers();
  void Try(const std::string& leader);
  void TryAgainLater(const std::string& leader);
  // The dialer whose attempt that is; null when it is over.
  Dialer* FindAttempt(const std::string& leader, std::uint64_t attempt);
  void MakeUpCost(std::size_t rail, std::uint32_t group);
  // Unless the service has ended by then.
  template <typename What>
  void After(TimeNs delay_ns, What what);

  Options options_;
  support::HandDrivenNode& node_;
  World world_;
  service::NodeFacts facts_;
  std::uint64_t jobs_numbered_ = 0;
  service::JobDirectory directory_;
  service::Leader leader_;
  service::Follower follower_;
  std::map<std::string, Dialer> dialers_;
  std::uint64_t attempts_ = 0;
  std::uint32_t jobs_opened_ = 0;
  std::size_t read_ = 0;
  bool reading_ = false;
  TimeNs due_ns_ = kNever;                                  // when the alarm rings
  std::map<std::uint32_t, transport::GroupOptions> links_;  // by group, which is the JobId
  std::map<std::uint32_t, std::uint64_t> keys_;             // of all links that were opened
  std::map<JobId, service::JobNodes> formed_;
  std::set<JobId> failed_;
  std::vector<service::JobFailed> failures_;
  std::vector<JobId> calls_;
  std::map<JobId, std::string> places_;
  std::map<service::RequestToken, service::QuorumAnswered> answers_;
};

}  // namespace headrace::sim
