// What people ask of running jobs: which job that is, whether they may, and who has to hear of it.
// Control's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "ipc/base/result.h"
#include "service/control/desk.h"
#include "service/control/peers/peers.h"
#include "service/control/plans.h"
#include "service/membership/allowance.h"
#include "service/membership/wishes.h"

namespace headrace::service {

// What one uid may ask for, and how often people are told that it was refused.
inline constexpr int kAskedMax = 32;
inline constexpr TimeNs kAskedWindow = kSecond;
inline constexpr int kRefusedSaidMax = 4;
inline constexpr TimeNs kRefusedWindow = 10 * kSecond;

class Helm {
 public:
  // All outlive this.
  Helm(Desk& desk, Peers& peers, Plans& plans) : desk_(desk), peers_(peers), plans_(plans) {}

  // The job's owner, root and the user of this service may; what they ask for is told to people.
  Status SetPolicy(std::string_view job, std::string_view policy, std::uint32_t uid);
  Status Steer(std::string_view job, std::uint8_t kind, std::uint64_t value, std::uint32_t uid);

 private:
  struct Found {
    KnownJob job;
    bool local = false;  // all of its ranks are on this node
  };
  struct Asker {
    Allowance asked{kAskedMax, kAskedWindow};
    Allowance refused{kRefusedSaidMax, kRefusedWindow};
  };

  // Why `uid` may not ask for anything more just now.
  Status CheckPace(std::uint32_t uid);
  // The job of that name that `uid` may steer; `wish` is for the refusal.
  Result<Found> Find(std::string_view job, std::uint32_t uid, const std::string& wish);
  void SayWish(const Found& found, std::string_view job, std::uint32_t uid,
               const std::string& wish);

  Desk& desk_;
  Peers& peers_;
  Plans& plans_;
  std::map<std::uint32_t, Asker> askers_;  // by uid
};

}  // namespace headrace::service
