// Names of the leaders of jobs as this service uses them, and their addresses. Pure.
#pragma once

#include <map>
#include <string>

#include "ipc/base/result.h"
#include "service/cluster/job_directory.h"

namespace headrace::service {

struct LeaderNames {
  std::string node_name;
  std::string address;  // where other services reach this one
  unsigned port = 0;    // of that address, as the system gave it
  std::map<std::string, std::string>
      peers;  // the allowed services and their addresses; empty: all are allowed

  // The name of the leader at that rendezvous: with a list of peers the name of a peer or of this
  // node, else "host:port". Refuses everything else, so that nobody can make this service connect
  // to other addresses.
  Result<std::string> At(const std::string& rendezvous) const;
  // The name of the service at that place of a job. With a list of peers the place must be in it.
  Result<std::string> At(const JobPlace& place) const;
  // The address of a name: that in the list of peers, if there is one.
  std::string AddressOf(const std::string& leader) const;
  // This service's address with its actual port; the host may be "*".
  std::string ListensAt() const;

 private:
  // The address at which this service can connect to itself.
  std::string OwnAddress() const;
};

// The address of a service that listens at `said` and connects from `from`, because other hosts may
// not know the name of its host. Empty if it cannot be reached.
std::string ControlAddress(const std::string& said, const std::string& from);

}  // namespace headrace::service
