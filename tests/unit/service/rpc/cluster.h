// Several services in this process that meet on loopback, and ranks that attach to them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {

// A service named "a", "b", ... that others can reach.
inline StandOptions NodeNamed(const std::string& name) {
  StandOptions options;
  options.peers.node_name = name;
  options.peers.address = "127.0.0.1:0";
  return options;
}

// One attached rank; dropping it is the rank's death.
struct AttachedRank {
  std::unique_ptr<Caller> caller;
  Attached attached;
};

inline AttachedRank AttachTo(CallerLoop& loop, ControlStand& stand, const AttachCall& fields) {
  AttachedRank rank;
  rank.caller = std::make_unique<Caller>(loop, stand.socket_path());
  rank.attached = rank.caller->Attach(fields);
  return rank;
}

// The last thing of this kind that the inbox took, a default one when there is none.
template <typename Kind, typename Message>
Kind Last(WatchedInbox<Message>& inbox) {
  Kind last{};
  const std::size_t count = inbox.template Count<Kind>();
  if (count > 0) inbox.template Visit<Kind>(count - 1, [&last](const Kind& each) { last = each; });
  return last;
}

}  // namespace headrace::support
