// What this service calls the leaders of jobs, and where it reaches them. Pure.
#pragma once

#include <map>
#include <string>

#include "ipc/base/result.h"

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
  // "b" of the list of peers is its address there.
  std::string AddressOf(const std::string& leader) const;

 private:
  // Where this service reaches itself.
  std::string OwnAddress() const;
};

}  // namespace headrace::service
