// The socket to the service: one thread with a kj event loop and the RPC connection on it.
//
// Other threads reach it through an inbox of calls. A caller sleeps until its call has ended, so a
// call may refer to the caller's stack. No kj object is used by two threads, and no kj exception
// leaves it. The socket is the session's lease: when this object is destroyed, the service ends the
// session.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/lib/control.h"
#include "client/lib/quorum.h"
#include "ipc/base/clock.h"

namespace headrace::client {

class ConnectionLoop;

// What a rank says of itself when it attaches.
struct AttachRequest {
  std::string socket_path;
  std::string job;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t timeout_ms = 0;          // 0: the service's default
  std::string rendezvous;                // of the job's nodes; empty: as the service has it
  std::string rendezvous_from{};         // where that was found, for people
  std::string architecture;              // empty: the leader's default
  std::string sends_class{};             // of rank 0; empty: as the job has it
  std::uint32_t slow_s = 0;              // likewise: hr_options.slow_bound_s
  std::uint32_t slow_least_world = 0;    // likewise; 0: nobody is evicted
  std::uint32_t min_world = 0;           // likewise: hr_options.shrink_min_world
  std::uint32_t after_epoch = 0;         // of the job, in which this rank was before; 0: it begins
  std::vector<std::uint32_t> members{};  // by rank; empty: each is what its rank says
  // Asks first who is left of the job, and attaches as what the answer says.
  std::optional<QuorumRequest> quorum{};
  bool can_reconnect = false;  // by itself, when the service ends
  std::string program;         // for logs: "libheadrace 0.1.0 (train.py)"
  TimeNs call_timeout_ns = 10 * kSecond;
  TimeNs deadline_ns = kNever;  // of all calls, until BoundCalls
};

// What the service answered.
struct Grant {
  std::uint32_t job_id = 0;
  std::uint32_t epoch = 0;
  std::uint32_t timeout_ms = 0;  // of operations that name none
};

class Connection final : public Control {
 public:
  // Connects, attaches with the channel and doorbell (which it keeps copies of until the service
  // has them), and starts the thread. `listener` must outlive the connection.
  static Result<std::unique_ptr<Connection>> Attach(const AttachRequest& request, int channel_fd,
                                                    int doorbell_fd, LossListener& listener);
  ~Connection() override;

  const Grant& grant() const { return grant_; }
  // Who is left of the job, where that was asked.
  const std::optional<Quorum>& quorum() const { return quorum_; }
  std::int32_t service_pid() const { return service_pid_; }

  Result<std::uint32_t> RegisterSegment(int fd, std::size_t size) override;
  Result<std::uint32_t> RegisterDeviceSegment(const DeviceHandle& handle,
                                              std::span<const UniqueFd> pieces) override;
  Status ReleaseSegment(std::uint32_t segment) override;
  Result<std::uint32_t> RegisterTensors(std::span<const TensorSpec> tensors) override;
  Status ReleaseTensors(std::uint32_t first, std::uint32_t count) override;
  Status SetLayout(const LayoutNotice& layout) override;
  Status Leave() override;
  bool IsThere() const override;
  void BoundCalls(TimeNs timeout_ns) override;
  void CloseInChild() override;

 private:
  Connection(std::unique_ptr<ConnectionLoop> loop, std::int32_t service_pid);
  Status SendHello(const AttachRequest& request, int channel_fd, int doorbell_fd);
  // Until there is an answer, which is in quorum_ and in the request.
  Status JoinQuorum(AttachRequest& request);
  // One question; `waits` is what there is no answer for yet.
  Status AskQuorum(const AttachRequest& request, std::string& waits);

  std::unique_ptr<ConnectionLoop> loop_;
  // The service takes one call at a time that changes what is registered: callers queue up here.
  std::mutex registering_;
  std::int32_t service_pid_;
  Grant grant_;
  std::optional<Quorum> quorum_;
};

}  // namespace headrace::client
