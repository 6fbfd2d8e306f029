// Setting changes of running jobs: finds the job, checks that the user may change it, and sends the
// change to the job's leader. Used on the peers thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ipc/base/result.h"
#include "service/cluster/allowance.h"
#include "service/cluster/setting_changes.h"
#include "service/peers/peers.h"
#include "service/peers/peers_options.h"

namespace headrace::service {

// Limits of requests of one uid, and of reports of their refusals.
inline constexpr int kAskedMax = 32;
inline constexpr TimeNs kAskedWindow = kSecond;
inline constexpr int kRefusedReportedMax = 4;
inline constexpr TimeNs kRefusedWindow = 10 * kSecond;

class JobSettings {
 public:
  // All must outlive this.
  JobSettings(const PeersPorts& ports, Peers& peers) : ports_(ports), peers_(peers) {}

  // Allowed for the job's owner, root and the user of this service. A request becomes an event.
  Status Change(const ChangeSetting& message);

 private:
  struct Asker {
    Allowance asked{kAskedMax, kAskedWindow};
    Allowance refused{kRefusedReportedMax, kRefusedWindow};
  };

  // An error if `uid` has made too many requests.
  Status CheckPace(std::uint32_t uid);
  // The job that is meant, if who asks may change it; `request` is named in the error.
  Result<KnownJob> Find(const ChangeSetting& message, const std::string& request);
  void ReportRefused(const ChangeSetting& message, const KnownJob& job, const std::string& request);
  Status SetPolicy(const ChangeSetting& message, plan::Policy policy);
  Status Steer(const ChangeSetting& message, const Steering& steering);
  void ShowEvent(Code code, JobId job, std::string text);

  const PeersPorts& ports_;
  Peers& peers_;
  std::map<std::uint32_t, Asker> askers_;  // by uid
};

}  // namespace headrace::service
