// A leader and the nodes that meet at it, by hand: what one says lies in a queue until it is
// delivered, lanes and dispatch are lists of what they were told. No network, no clock, no thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "service/cluster/follower.h"
#include "service/cluster/leader.h"

namespace headrace::support {

inline const std::string kMeetingPlace = "10.0.0.1:7733";

// One node, and what its parts were told.
struct MeetingNode {
  MeetingNode(std::string node_name, std::size_t lanes_count, bool server, std::uint64_t salt = 0);

  std::string name;
  service::NodeFacts facts;
  service::JobDirectory directory;
  service::Follower follower;
  service::NodeId id = 0;  // of its connection; 0: there is none
  bool wants_leader = false;
  std::deque<service::PeerMessage> to_leader;
  std::deque<service::PeerMessage> to_node;
  std::vector<service::ToDispatch> dispatch;
  std::vector<service::ToLane> lanes;
  std::vector<std::string> events;               // that people were told on it
  std::vector<std::string> refusals;             // that its leader gave it
  std::vector<service::Answered> answers;        // to those who asked what a job waits for
  std::vector<service::QuorumAnswered> quorums;  // to those who asked who is left of one
  std::vector<service::SessionBroken> evicted;   // of its ranks
  std::vector<service::JobPlaced> placed;        // as the job's ranks are to know
  std::vector<JobId> members_wait;               // jobs whose ranks are to know that others wait
  // How its lanes answer; nothing: they do not.
  std::optional<Status> open_answer = Status{};
  std::optional<Result<transport::CostLine>> cost =
      Result<transport::CostLine>(transport::CostLine{.startup_s = 1e-5, .s_per_byte = 1e-9});

  // The messages of one kind that dispatch or the lanes have got.
  template <typename Kind>
  std::vector<Kind> Told() const {
    std::vector<Kind> found;
    const auto keep = [&found](const auto& each) {
      if constexpr (std::is_same_v<std::decay_t<decltype(each)>, Kind>) found.push_back(each);
    };
    for (const service::ToDispatch& each : dispatch) std::visit(keep, each.message);
    for (const service::ToLane& each : lanes) std::visit(keep, each.message);
    return found;
  }
  // The cause of the last failure dispatch was told; empty: none.
  std::string failure() const;
  // What it was told last that the job waits for.
  std::string waits() const;
};

struct MeetingOptions {
  std::size_t lanes_count = 1;
  Architecture architecture = Architecture::kAllReduce;
  std::set<std::string> peers{};
  std::uint32_t verify = 0;
};

class Meeting {
 public:
  explicit Meeting(MeetingOptions options = {});

  MeetingNode& AddNode(const std::string& name, std::uint64_t salt = 0);
  MeetingNode& AddServer(const std::string& name);
  service::Leader& leader() { return leader_; }
  // Plans that the leader wants made, and what it wants people to know.
  std::vector<service::MakePlan>& plans_wanted() { return plans_wanted_; }
  std::vector<std::string>& leader_events() { return leader_events_; }
  std::vector<std::unique_ptr<MeetingNode>>& nodes() { return nodes_; }

  // A rank attaches; `job` is the node's number for the job. The pid is 100 + rank.
  static service::SessionIdentity Rank(std::uint32_t job, std::uint32_t rank,
                                       std::uint32_t world_size, std::string name = "train");
  void Attach(MeetingNode& node, const service::SessionIdentity& identity);

  // The connection comes about, if the leader lets the node in, or breaks.
  Status Connect(MeetingNode& node);
  void Cut(MeetingNode& node, const std::string& cause);

  // Ends the connection of a node that needs it no more.
  bool Leave(MeetingNode& node);

  // Takes what the leader and the nodes want done, without delivering anything.
  void Collect();
  // Delivers the next message in one direction; false when there is none.
  bool DeliverToLeader(MeetingNode& node);
  bool DeliverToNode(MeetingNode& node);
  // When it is, for what is limited in time.
  TimeNs now() const { return now_; }
  void Pass(TimeNs time_ns) { now_ += time_ns; }
  // Connects who wants to and delivers until nothing is left. Returns how many messages there were.
  std::size_t Run();

 private:
  void Do(MeetingNode& node, const service::FollowerAction& action);
  void AnswerLane(MeetingNode& node, const service::ToLane& told);

  MeetingOptions options_;
  TimeNs now_ = 1000 * kSecond;
  service::JobDirectory directory_;
  service::Leader leader_;
  std::uint64_t keys_ = 0;
  std::vector<service::MakePlan> plans_wanted_;
  std::vector<std::string> leader_events_;
  service::NodeId ids_ = 0;
  std::vector<std::unique_ptr<MeetingNode>> nodes_;
};

}  // namespace headrace::support
