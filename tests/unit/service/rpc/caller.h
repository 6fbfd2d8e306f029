// A client that speaks the control protocol by hand, so that it may also speak it wrongly.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/error.h"
#include "ipc/base/fd.h"
#include "ipc/base/steering.h"
#include "ipc/schema/admin.capnp.h"
#include "ipc/schema/client.capnp.h"
#include "service/session/session.h"

namespace headrace::support {

// One event loop per thread, shared by its callers.
struct CallerLoop {
  kj::AsyncIoContext io = kj::setupAsyncIo();

  // Waits for the promise, at most ten seconds; throws kj::Exception after that.
  template <typename T>
  T Wait(kj::Promise<T> promise) {
    return io.provider->getTimer()
        .timeoutAfter(10 * kj::SECONDS, kj::mv(promise))
        .wait(io.waitScope);
  }
};

// A blocking connected socket.
UniqueFd ConnectTo(const std::string& path);
// The same for a socket that is there.
void Connect(int socket, const std::string& path);

struct AttachCall {
  std::string job = "train";
  std::uint32_t rank = 0;
  std::uint32_t world_size = 2;
  std::uint32_t protocol_version = schema::PROTOCOL_VERSION;
  std::string program = "libheadrace 0.1.0 (test)";
  std::uint32_t timeout_ms = 0;
  std::string rendezvous;
  std::string architecture;
  // Instead of an honest channel and doorbell; -1 passes a capability without a descriptor.
  std::optional<int> channel;
  std::optional<int> doorbell;
};

struct Answered {
  Code code = Code::kOk;
  std::string text;
};

struct Attached : Answered {
  schema::Session::Client session = nullptr;
  std::uint64_t session_id = 0;
  std::uint32_t job_id = 0;
  std::uint32_t timeout_ms = 0;
};

struct Numbered : Answered {
  std::uint32_t number = 0;  // of the segment or the first tensor
};

// What is said of GPU memory, true or not.
struct DeviceClaim {
  std::uint32_t kind = 0;
  std::uint32_t exporter_pid = 1;
  std::string device;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t piece_size = 0;
  std::string legacy;
  std::uint32_t pieces_count = 0;
};

struct LayoutCall {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  Reduction reduction = Reduction::kAverage;
  std::string policy;
  std::string codec;
  std::vector<std::string> codecs;
  std::uint64_t residuals = 0;
  std::uint32_t factors_rank = 0;
  std::uint64_t iterations_before = 0;
  bool adaptive = false;
  std::vector<std::uint64_t> rows = {};
};

class Caller {
 public:
  Caller(CallerLoop& loop, const std::string& path);

  schema::Bootstrap::Client& bootstrap() { return bootstrap_; }
  CallerLoop& loop() { return loop_; }

  Attached Attach(const AttachCall& fields);
  Numbered RegisterSegment(schema::Session::Client& session, int fd, std::uint64_t size);
  // Each piece is a copy of `fd`, or, when that is -1, a capability without one.
  Numbered RegisterDeviceSegment(schema::Session::Client& session, const DeviceClaim& claim,
                                 int fd);
  Answered ReleaseSegment(schema::Session::Client& session, std::uint32_t segment);
  Numbered RegisterTensors(schema::Session::Client& session,
                           const std::vector<service::Tensor>& tensors);
  Answered ReleaseTensors(schema::Session::Client& session, std::uint32_t first,
                          std::uint32_t count);
  Answered Leave(schema::Session::Client& session);
  Answered SetLayout(schema::Session::Client& session, const LayoutCall& fields);
  // As an admin.
  schema::Admin::Client Admin();
  Answered SetPolicy(const std::string& job, const std::string& policy);
  Answered Steer(const std::string& job, SteeringKind kind, std::uint64_t value = 0,
                 bool forced = false);

 private:
  CallerLoop& loop_;
  kj::Own<kj::AsyncCapabilityStream> stream_;
  capnp::TwoPartyClient client_;
  schema::Bootstrap::Client bootstrap_;
};

// A capability that carries a copy of `fd`; none when it is -1.
schema::Descriptor::Client Carry(int fd);

Answered Read(schema::Refusal::Reader refusal);

}  // namespace headrace::support
