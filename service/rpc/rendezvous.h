// Checks whether this service can serve a rank that meets others at a rendezvous. Conditions that
// depend on other nodes are checked by peers (CheckRank). Pure.
#pragma once

#include <string>

#include "ipc/base/result.h"
#include "service/accounts/leases.h"
#include "service/cluster/leader_names.h"

namespace headrace::service {

struct RendezvousRules {
  LeaderNames names;       // without an address there are no others
  bool server = false;     // it has no ranks of jobs of several nodes
  std::string rendezvous;  // of jobs whose ranks name none
  bool has_lanes = false;  // between nodes
};

// Before the rank gets a slot; fills in defaults, and the name of the leader.
Status CheckRendezvous(const RendezvousRules& rules, LeaseRequest& request);

}  // namespace headrace::service
