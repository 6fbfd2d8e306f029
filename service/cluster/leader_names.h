// What this service calls the leaders of jobs, and where it reaches them. Pure.
#pragma once

#include <map>
#include <string>

#include "ipc/base/result.h"
#include "service/cluster/job_directory.h"

namespace headrace::service {

struct LeaderNames {
  std::string node_name;
  std::string address;                       // where other services reach this one
  unsigned port = 0;                         // of that address, as the system gave it
  std::map<std::string, std::string> peers;  // the only ones, and their addresses; empty: all

  // What this service calls the leader at that rendezvous: the name of a peer in the list or its
  // own where there is a list, "host:port" elsewhere. Refuses whatever else it might be made to
  // dial.
  Result<std::string> At(const std::string& rendezvous) const;
  // What this service calls the one at that place of a job: by its name where there is a list, and
  // then only if it is in it.
  Result<std::string> At(const JobPlace& place) const;
  // "b" of the list of peers is its address there.
  std::string AddressOf(const std::string& leader) const;
  // The address, with the port that it has come to; the host may be "*".
  std::string ListensAt() const;

 private:
  // Where this service reaches itself.
  std::string OwnAddress() const;
};

// How a service is reached that says it listens at `said`, and whose connection comes from `from`:
// its own host may be known there by no name. Empty: it cannot be.
std::string ControlAddress(const std::string& said, const std::string& from);

}  // namespace headrace::service
