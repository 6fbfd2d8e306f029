// Where other services reach this one on its rails. Any thread.
#pragma once

#include <string>
#include <vector>

namespace headrace::service {

// "address:port" of each of these network devices that has an address which other nodes may reach,
// in their order. None where the service listens at one address only and not at all of them:
// `listens_at` is "*", "0.0.0.0" or "::" with a port. Devices without an address (RDMA ports) have
// none here.
std::vector<std::string> RailAddresses(const std::string& listens_at, unsigned port,
                                       const std::vector<std::string>& devices);
// What is wrong with such a list that another service sent; empty: nothing.
std::string WrongRailAddress(const std::vector<std::string>& addresses);

}  // namespace headrace::service
