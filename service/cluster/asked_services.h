// How many questions of each user go to each service. A question goes to all services of its job,
// and other services, and clients, say which these are; so they are counted by user. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "service/cluster/quorum_places.h"

namespace headrace::service {

// Limit of services that the questions of one user are sent to.
inline constexpr std::size_t kAskedServicesPerUserMax = 128;

class AskedServices {
 public:
  using Counts = std::map<std::string, std::size_t>;  // questions by service; none is 0

  void Add(std::uint32_t uid, const QuorumPlaces& places);
  // Returns whether a service is asked no more.
  bool Remove(std::uint32_t uid, const QuorumPlaces& places);
  const Counts& Of(std::uint32_t uid) const;
  // Whether one of the user's questions may go to that service, too. Itself costs nothing.
  bool MayAsk(std::uint32_t uid, const std::string& leader) const;

 private:
  std::map<std::uint32_t, Counts> by_user_;
};

}  // namespace headrace::service
