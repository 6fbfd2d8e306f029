// Where the services of a job's nodes are, and the text by which clients keep that: a service that
// begins again has forgotten it, and its clients return it when they ask who is left of their job.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::service {

inline constexpr std::size_t kPlaceAddressMax = 262;  // bytes of "host:port"

struct JobPlace {
  std::string node;     // node name; empty: not known
  std::string address;  // "host:port" of its service; empty in a message: the sender's own

  friend bool operator==(const JobPlace&, const JobPlace&) = default;
};

// A line "NODE ADDRESS" for each, in their order. An unknown name and the address of the service
// itself are "-".
std::string PlacesText(const std::vector<JobPlace>& places);
// The reverse; of a client, so anything may stand there. At most transport::kNodesMax places, each
// with a name or an address. Whether an address can be reached, and may be, is not checked here.
Result<std::vector<JobPlace>> ParsePlaces(std::string_view text);

}  // namespace headrace::service
