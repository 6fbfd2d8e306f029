// Ends the service: jobs move over, open work drains, and then the loop returns, or earlier at a
// second signal or the deadline. The rpc thread only.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/accounts/leases.h"
#include "service/rpc/control_options.h"
#include "service/rpc/dispatch_requests.h"
#include "service/rpc/peers_requests.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

class Shutdown final : private kj::TaskSet::ErrorHandler {
 public:
  // All outlive this.
  struct Ports {
    Leases& leases;
    DispatchRequests& dispatch;
    PeersRequests& peers;
    kj::Timer& timer;
    spdlog::logger& log;
  };
  // `drain_timeout_ns` is what open operations get; `begun` is called when it begins.
  Shutdown(Ports ports, TimeNs drain_timeout_ns, std::function<void()> begun);

  // From here on no session is taken.
  bool begun() const { return begun_; }
  kj::Promise<void> WhenBegun() { return whenever_begun_.addBranch(); }
  // How long jobs that cannot reconnect have at most; 0: no person has asked for it.
  TimeNs patience_ns() const { return patience_ns_; }
  // Once, of a session that is refused because of this; ranks that wait for the next service ask
  // again and again.
  bool ShouldLogRefusal() { return !std::exchange(refusal_logged_, true); }

  struct Moving {
    std::uint32_t sessions = 0;        // that are open
    std::vector<std::string> waits{};  // names of the jobs that cannot reconnect
  };
  // First half of an end that `uid` asks for: jobs leave, those that cannot reconnect within
  // `patience_ns`. What remains then is ended as by a signal.
  Result<Moving> MoveJobs(std::uint32_t uid, TimeNs patience_ns);
  // SIGTERM or SIGINT: drains, and the second time ends at once.
  void OnSignal(const char* name);
  // A service that went on would fail every later transfer of that GPU. Jobs that can reconnect go
  // on with the one that is started in its place.
  void OnGpuBroken(const std::string& cause);
  // Nothing is open in dispatch any more.
  void OnDrained();
  // Something without which the service does nothing has ended.
  void Fail(const std::string& cause);

  // The exit code, once.
  kj::Promise<int> WhenFinished() { return kj::mv(exit_code_); }

 private:
  void Begin();
  void BeginDrain(const char* asked);
  kj::Promise<void> SendDrain(Drain message);
  kj::Promise<void> AwaitEmpty(TimeNs deadline_ns);
  void Finish(int code);
  void taskFailed(kj::Exception&& exception) override;

  Ports ports_;
  TimeNs drain_timeout_ns_;
  std::function<void()> on_begun_;
  bool begun_ = false;
  bool ending_ = false;  // nothing is waited for any more, but for what is under way
  bool refusal_logged_ = false;
  TimeNs patience_ns_ = 0;
  int drained_code_ = 0;
  kj::Own<kj::PromiseFulfiller<void>> begins_;
  kj::ForkedPromise<void> whenever_begun_ = nullptr;
  kj::Own<kj::PromiseFulfiller<int>> finished_;
  kj::Promise<int> exit_code_ = nullptr;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
