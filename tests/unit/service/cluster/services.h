// Several whole services, each of which leads and takes part in jobs, by hand: whoever wants
// another dials it, what one says lies in a queue until it is delivered, and either end of a
// connection notices its end by itself. Lanes answer at once, dispatch is a list of what it was
// told. No network, no clock, no thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/cluster/follower.h"
#include "service/cluster/job_directory.h"
#include "service/cluster/leader.h"

namespace headrace::support {

// One service from its start to its end, and what its parts were told.
struct WholeService {
  WholeService(std::string name, std::uint64_t instance, const std::set<std::string>& peers);

  std::string name;
  std::uint64_t keys = 0;
  service::NodeFacts facts;
  service::JobDirectory directory;
  service::Leader leader;
  service::Follower follower;
  std::set<std::string> wanted;  // leaders that it wants to reach
  std::vector<service::QuorumAnswered> answers;
  std::vector<JobId> members_wait;
  std::map<JobId, std::string> placed;         // where the services of jobs are, as ranks were told
  std::map<JobId, service::JobNodes> running;  // as dispatch was told
  std::map<JobId, std::string> failed;         // and why
  std::map<std::uint32_t, std::uint64_t> group_keys;
};

class Services {
 public:
  // Each is reached at AddressOf(name). `peers`: they speak with these only; empty: with all.
  explicit Services(std::vector<std::string> names, std::set<std::string> peers = {});

  static std::string AddressOf(const std::string& name) { return name + ":7733"; }
  WholeService& at(std::size_t place) { return *services_[place]; }
  bool IsAlive(std::size_t place) const { return services_[place] != nullptr; }
  std::size_t size() const { return services_.size(); }

  // Ends it, with all of its connections; nobody is told before NoticeEnd.
  void Kill(std::size_t place);
  void Restart(std::size_t place);
  // Whether a connection from `from` to `to` comes about and lives.
  void SetReach(std::size_t from, std::size_t to, bool reaches);
  bool Reaches(std::size_t from, std::size_t to) const { return !cut_.contains({from, to}); }
  // Breaks the connection from one to the other, if there is one.
  void Break(std::size_t from, std::size_t to);

  // Takes what all want done, without delivering anything.
  void Collect();
  // One step each, of the number that it is given; false where there is nothing to do.
  bool Deliver(std::uint32_t draw);
  bool Dial(std::uint32_t draw);
  bool NoticeEnd(std::uint32_t draw);
  // All of these until nothing happens; one attempt is made to reach those that cannot be reached.
  void Run();

  TimeNs now() const { return now_; }
  void Pass(TimeNs time_ns);
  std::size_t connections() const { return links_.size(); }

 private:
  struct Link {
    std::uint64_t id = 0;  // for the leader
    std::size_t from = 0;
    std::size_t to = 0;
    bool broken = false;
    bool dialer_knows = false;  // that it is over, as the next
    bool listener_knows = false;
    std::deque<service::PeerMessage> to_listener{};
    std::deque<service::PeerMessage> to_dialer{};
  };

  std::size_t PlaceOf(const std::string& leader) const;
  Link* Find(std::size_t from, const std::string& leader);
  void DoAll(std::size_t place);
  void Do(std::size_t place, const service::FollowerAction& action);
  void DoLane(WholeService& service, const service::ToLane& told);
  void Attempt(std::size_t from, const std::string& leader);
  void SweepLinks();

  std::vector<std::string> names_;
  std::set<std::string> peers_;
  std::vector<std::unique_ptr<WholeService>> services_;
  std::set<std::pair<std::size_t, std::size_t>> cut_;
  std::vector<Link> links_;
  std::uint64_t ids_ = 0;
  std::uint64_t instances_ = 0;
  TimeNs now_ = 1000 * kSecond;
};

}  // namespace headrace::support
