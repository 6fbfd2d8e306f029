// One attached rank: the channel, the connection to the service, and all registered memory.
//
// Owned by the caller of hr_open through the C handle. Thread-safe as the C header says. Members
// are in build order: the connection, whose thread calls OnLost, is built last and destroyed first.
//
// A session outlives its service: Reconnect makes a new channel and a new connection, and registers
// everything again under the same handles.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/include/headrace/headrace.h"
#include "client/lib/arrays.h"
#include "client/lib/call_gate.h"
#include "client/lib/connection.h"
#include "client/lib/control.h"
#include "client/lib/fork_guard.h"
#include "client/lib/handles.h"
#include "client/lib/layout.h"
#include "client/lib/operations.h"
#include "client/lib/requests.h"
#include "client/lib/session_gpus.h"
#include "ipc/channel.h"
#include "ipc/records.h"

namespace headrace::client {

class Session final : public LossListener {
 public:
  // The channel and doorbell, to be announced to the service.
  struct Endpoints {
    ForkGuard guard;
    ipc::Channel channel;
    UniqueFd doorbell;
  };

  // What came of attaching.
  struct Attached {
    std::unique_ptr<Control> control;
    std::int32_t service_pid = 0;
    Grant grant = {};                   // timeout_ms 0: nothing bounds operations
    std::optional<Quorum> quorum = {};  // where it was asked for
  };
  // How a session attaches; `listener` is the session.
  using Attacher = std::function<Result<Attached>(const AttachRequest& request, int channel_fd,
                                                  int doorbell_fd, LossListener& listener)>;

  // Checks the options, connects and attaches.
  // `rendezvous_from`: where the options' rendezvous was found, for people.
  static Result<std::unique_ptr<Session>> Open(const hr_options& options,
                                               std::string_view rendezvous_from = {});

  // For Open, and for tests that stand in for the service.
  Session(const hr_options& options, Endpoints endpoints, Attacher attach = {});
  void Adopt(Attached attached);

  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // As they are now: a job that goes on with fewer ranks numbers them anew.
  std::uint32_t rank() const { return rank_.load(std::memory_order_relaxed); }
  std::uint32_t world_size() const { return world_size_.load(std::memory_order_relaxed); }
  // The number that each rank had at first.
  const std::vector<std::uint32_t>& members() const { return membership_.members; }
  Asker asker() const { return {rank(), world_size()}; }
  const std::string& job() const { return request_.job; }
  std::int32_t service_pid() const { return service_pid_.load(std::memory_order_relaxed); }

  // Everything below but CloseInChild is refused in a forked child.
  Status CheckProcess() const;
  bool InChild() const { return endpoints_.guard.InChild(); }

  // Every call below but Reconnect and Leave is made inside of it.
  CallGate& call_gate() { return call_gate_; }
  // What is said to calls that come while it is closed.
  Status Reconnecting() const;
  // Waits for a service, attaches, hands in what is registered, and waits for the other ranks. A
  // negative timeout is no limit; 0: as the options say. In session_reconnect.cc.
  Status Reconnect(TimeNs timeout_ns) { return Reattach(timeout_ns, shrink_, true); }
  // Goes on with those that are left, and with those that wait to join, whether or not anything is
  // lost.
  Status Shrink(TimeNs timeout_ns, const ShrinkRules& rules) {
    return Reattach(timeout_ns, rules, false);
  }
  // For a process that is no rank yet: joins when the job's ranks form anew. Before anything else.
  Status Join();
  // Others wait to.
  // Where the job's nodes meet, as this rank has attached last.
  const std::string& rendezvous() const { return request_.rendezvous; }
  // An hr_role.
  std::uint32_t came_as() const { return came_as_; }
  bool members_wait() const { return members_wait_.load(std::memory_order_relaxed); }

  Result<hr_segment*> CreateSegment(std::size_t size);
  Result<hr_segment*> CreateDeviceSegment(std::size_t size, int device);
  // `address` on a GPU; the memory stays the caller's.
  Result<hr_segment*> ShareDeviceSegment(void* address, std::size_t size);
  Result<hr_allocation> AllocationAt(const void* address);
  Status ReleaseSegment(hr_segment* segment);
  Status RegisterTensors(std::span<const hr_tensor_spec> specs, hr_tensor** tensors);
  Status ReleaseTensors(std::span<hr_tensor*> tensors);

  // One a session. The handle stays until it is freed or the session goes.
  Result<hr_layout*> CreateLayout(std::span<const hr_tensor_spec> specs,
                                  const hr_layout_options& options);
  // The job's iterations that have ended, for when the layout is handed in again.
  void SetLayoutIterations(std::uint64_t iterations);
  void FreeLayout(const hr_layout* layout);

  // In which codec all-reduces posted from now on cross between nodes; empty: none.
  // kInvalidArgument for one that needs residuals.
  Status SetAllReduceCodec(std::string_view name);
  // `range` null: the whole tensor. Returns the operation's number.
  Result<std::uint64_t> Post(const Request& request, const hr_tensor* tensor,
                             const hr_range* range);
  // Ready once `stream` has come this far; on memory of a GPU.
  Result<std::uint64_t> PostOnStream(const Request& request, const hr_tensor* tensor,
                                     const hr_range* range, transport::CuStream stream);
  // The same of memory of GPU `device`.
  Result<std::uint64_t> PostOnStream(Result<TableRequest> request, int device,
                                     transport::CuStream stream);
  // What follows in `stream` starts once the operation has ended.
  Status WaitOnStream(std::uint64_t operation, transport::CuStream stream);
  // Returns the failure of a request that has failed. See requests.h.
  Result<std::uint64_t> Post(Result<ArrayRequest> request);
  Result<std::uint64_t> Post(Result<TableRequest> request);
  // The two tensors must be this session's; `counts` null: equal parts.
  Result<TableRequest> PartsRequest(const Request& request, const hr_tensor* whole,
                                    const hr_range* whole_range, const hr_tensor* own,
                                    const hr_range* own_range, const std::uint64_t* counts);
  Result<std::uint64_t> PostBarrier();

  // Before anything is waited for in this one.
  void CountWaitsIn(const Session& other) { operations_.CountWaitsIn(other.operations_); }
  Result<bool> HasEnded(std::uint64_t operation) const { return operations_.HasEnded(operation); }
  Status Wait(std::uint64_t operation, TimeNs timeout_ns);
  // The rank whose send a receive has taken, once that has ended well.
  Result<std::uint32_t> SourceOf(std::uint64_t operation) const {
    return operations_.SourceOf(operation);
  }
  void Discard(std::uint64_t operation) { arrays_->Discard(operation); }

  // Where CUDA's driver is; before it is needed.
  void UseCudaLibrary(std::string library) { gpus_.UseLibrary(std::move(library)); }
  // For streams that make memory on that GPU ready, or wait for it; -1, the host, is refused.
  Result<GpuWords*> WordsFor(int device, transport::CuStream stream);

  void ReadCounters(hr_counters& counters) const;

  // What was put into streams is carried out first, as far as others let it in bounded time.
  Status Leave();
  // Drops the descriptors a forked child inherited; the object must then not be destroyed.
  void CloseInChild();

  void OnLost(const Error& loss) override { operations_.Lose(loss); }
  void OnMembersWait() override { members_wait_.store(true, std::memory_order_relaxed); }
  void OnPlaces(std::string places) override;
  std::uint64_t OldestOpen() override { return operations_.OldestOpen(); }

 private:
  void AddCodec(ipc::Record& record) const;
  // By the handle the caller holds, so that a foreign or released one is noticed.
  template <typename Handle>
  using Owned = std::map<const Handle*, std::unique_ptr<Handle>>;

  hr_segment* Own(std::unique_ptr<hr_segment> segment);
  Result<std::uint32_t> Announce(std::span<const TensorSpec> specs, LayoutNotice& notice);
  template <typename Handle>
  Status CheckOwned(const Owned<Handle>& owned, const Handle* handle, const char* what);

  // The steps of Reconnect, Shrink and Join. `if_lost`: only where something is lost.
  Status Reattach(TimeNs timeout_ns, const std::optional<ShrinkRules>& shrink, bool if_lost);
  Status CheckLost() const;
  void EndLife(const Error& cause);
  Status RetryAttempts(TimeNs timeout_ns, const std::optional<ShrinkRules>& shrink);
  Status Attempt(TimeNs deadline, const std::optional<ShrinkRules>& shrink);
  Status RegisterAgain();
  Status RegisterAgain(hr_segment& segment);
  Status RegisterTensorsAgain();
  Status SetLayoutAgain();
  Status AwaitOthers(TimeNs deadline);
  void AdoptMembership(const Membership& membership, std::uint32_t own);
  std::string KeptPlaces();
  std::string DescribeAttempt() const;

  const Attacher attach_;
  AttachRequest request_;      // as at first; Reconnect changes a copy
  const TimeNs reconnect_ns_;  // 0: off
  const std::optional<ShrinkRules> shrink_;
  std::atomic<std::uint32_t> rank_;
  std::atomic<std::uint32_t> world_size_;
  Membership membership_;  // the last in which this rank has met all others; Reconnect's only
  const std::uint8_t came_as_;
  std::uint8_t role_ = HR_ROLE_RANK;                 // another one until it is a member; likewise
  std::atomic<std::uint64_t> all_reduce_codec_ = 0;  // headrace::SteeringValue
  std::atomic<bool> members_wait_ = false;
  CallGate call_gate_;
  std::atomic<bool> reconnecting_ = false;
  std::uint32_t epoch_ = 1;  // of the job; Reconnect's only
  Endpoints endpoints_;
  Operations operations_;
  SessionGpus gpus_;
  std::atomic<std::int32_t> service_pid_ = 0;
  std::mutex places_mutex_;
  std::string places_;  // guarded by places_mutex_; of the job's services, as the service has said
  std::mutex mutex_;
  Owned<hr_segment> segments_;         // guarded by mutex_
  Owned<hr_tensor> tensors_;           // guarded by mutex_
  bool has_layout_ = false;            // guarded by mutex_; one was made or is being made
  std::unique_ptr<hr_layout> layout_;  // guarded by mutex_
  // What the layout is, also after its handle was freed.
  struct LayoutRequest {
    const hr_segment* segment = nullptr;
    const hr_segment* residuals_segment = nullptr;  // null: the same
    std::vector<TensorSpec> specs;
    LayoutNotice notice;
  };
  std::optional<LayoutRequest> layout_request_;  // guarded by mutex_
  std::unique_ptr<Arrays> arrays_;               // refers to control_, but not when it goes
  std::unique_ptr<Control> control_;
};

}  // namespace headrace::client
