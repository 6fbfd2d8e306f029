// The capability of one attached rank. Dropping it ends the lease.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/schema/client.capnp.h"
#include "service/accounts/arrivals.h"
#include "service/accounts/memory_accounting.h"
#include "service/rpc/client.h"
#include "service/rpc/dispatch_requests.h"
#include "service/rpc/mapping_requests.h"
#include "service/rpc/peers_requests.h"
#include "service/rpc/session_notices.h"
#include "service/rpc/shutdown.h"
#include "service/rpc/slow_release.h"

namespace headrace::service {

// The first three outlive the event loop, the others all calls.
struct SessionPorts {
  Leases& leases;
  Arrivals& arrivals;
  SlowRelease& releases;
  DispatchRequests& dispatch;
  MappingRequests& mapping;
  PeersRequests& peers;
  Shutdown& shutdown;
  SessionNotices& notices;
  kj::Timer& timer;
  const std::string& gpus_missing;  // why no GPU memory is taken, and the remedy; empty: it is
  bool nccl_between_nodes;          // takes GPUs' memory, and not the host's lanes
  TimeNs late_ns;                   // after which a rank gets what its job waits for; 0: never
};

class SessionServer final : public schema::Session::Server {
 public:
  SessionServer(kj::Own<Client> client, SessionId session, const SessionPorts& ports)
      : client_(kj::mv(client)), session_(session), ports_(ports) {
    ports_.notices.Expect(session_);
  }
  ~SessionServer();

  kj::Promise<void> registerSegment(RegisterSegmentContext context) override;
  kj::Promise<void> releaseSegment(ReleaseSegmentContext context) override;
  kj::Promise<void> registerTensors(RegisterTensorsContext context) override;
  kj::Promise<void> releaseTensors(ReleaseTensorsContext context) override;
  kj::Promise<void> leave(LeaveContext context) override;
  kj::Promise<void> setLayout(SetLayoutContext context) override;
  kj::Promise<void> registerDeviceSegment(RegisterDeviceSegmentContext context) override;
  kj::Promise<void> registration(RegistrationContext context) override;
  kj::Promise<void> lateness(LatenessContext context) override;
  kj::Promise<void> stopping(StoppingContext context) override;
  kj::Promise<void> notice(NoticeContext context) override;

 private:
  // One call that waits for another actor at a time.
  Status BeginSlow(const char* call);
  void EndSlow();
  kj::Promise<Result<SegmentId>> Map(UniqueFd memory, std::uint64_t size);
  kj::Promise<Result<SegmentId>> MapDevice(const DeviceHandle& handle, std::vector<UniqueFd> fds);
  // Books a segment that will hold `bytes` of memory, `size` of which are meant.
  Result<SegmentId> Reserve(std::uint64_t size, std::uint64_t bytes, MemoryAccounting::Kind kind);
  // Has it mapped: the request says how, and gets the rest here.
  template <typename Request>
  kj::Promise<Result<SegmentId>> Map(SegmentId id, Request request);
  Result<SegmentId> Add(SegmentId id, Result<SegmentMemory> memory);
  kj::Promise<Status> Remove(SegmentId id);
  // Tensors on their way from a call to dispatch, a slice of them in a turn of the loop.
  struct Registration;
  kj::Promise<Result<TensorId>> CheckAll(kj::Own<Registration> registration);
  kj::Promise<Result<TensorId>> AddAll(kj::Own<Registration> registration);
  Status AddSlice(Registration& registration);
  void RollBack(const Registration& registration);
  // Books on the session's user what its tensors make the service hold, beyond what each session
  // may have anyway. Less than before is never refused.
  Status BookTensors(std::uint64_t held_bytes);
  // To what they hold now, which is not more than what is booked.
  void RebookTensors();
  // The segment is gone, or never came to be.
  void Erase(SegmentId id);
  struct LayoutRequest {
    TensorId first;
    std::uint32_t count = 0;
    Reduction reduction = Reduction::kSum;
    std::string policy;
    std::string codec;
    std::vector<std::string> codecs;  // of each tensor; empty ones: as codec says
    std::uint64_t compress_after = 0;
    ResidualsPlace residuals;
    std::uint64_t iterations_before = 0;
    bool adaptive = false;
    std::vector<std::uint64_t> rows;  // of each tensor
  };
  kj::Promise<Status> Set(const LayoutRequest& request);
  Status ReadCodecs(const LayoutRequest& request, Layout& layout) const;

  kj::Own<Client> client_;
  SessionId session_;
  SessionPorts ports_;
  MemoryAccounting memory_;
  std::uint64_t tensor_bytes_booked_ = 0;
  const char* slow_call_ = nullptr;
  bool asked_lateness_ = false;
  bool asked_stopping_ = false;
  RequestToken mapping_ = 0;  // the last that was asked for
};

}  // namespace headrace::service
