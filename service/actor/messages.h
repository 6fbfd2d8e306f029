// Everything one actor says to another. Messages own what they carry; whoever takes one owns it.
//
//   control --OpenSession, AddSegment, ...--> dispatch --StartStage--> lane
//      ^  \--MapSegment--> watch --SegmentMapped--> control   \--StageEnded--> dispatch
//      \--SessionBroken, SegmentRemoved, Pong-- dispatch --Discard, Event--> watch
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/session/session.h"
#include "transport/transport.h"

namespace headrace::service {

// A number by which control finds the waiting RPC when the answer comes.
using RequestToken = std::uint64_t;

// ---- to dispatch ----
// A rank has joined. The first session of a job brings the job into being.
struct OpenSession {
  std::unique_ptr<Session> session;
};
struct AddSegment {
  SessionId session;
  SegmentId segment;
  Mapping mapping;
};
// Answered by SegmentRemoved: refused while tensors or open operations use it.
struct RemoveSegment {
  SessionId session;
  SegmentId segment;
  RequestToken token = 0;
};
// ids are `first`, `first` + 1, ...; checked by control against the segment's size.
struct AddTensors {
  SessionId session;
  TensorId first;
  std::vector<Tensor> tensors;
};
struct RemoveTensors {
  SessionId session;
  TensorId first;
  std::uint32_t count = 0;
};
// The lease ended: the socket closed (lost) or the client said it leaves (orderly).
struct CloseSession {
  SessionId session;
  bool orderly = false;
  std::string cause;  // "exited or was killed", "left the job", ...
};
struct Ping {
  RequestToken token = 0;
};
// Accept no new operation; `deadline_ns` is when to end what is still open. Answered by Drained.
struct Drain {
  TimeNs deadline_ns = 0;
};
struct StageEnded {
  std::uint8_t lane = 0;
  transport::Completion completion;
};
using DispatchMessage = std::variant<OpenSession, AddSegment, RemoveSegment, AddTensors,
                                     RemoveTensors, CloseSession, Ping, Drain, StageEnded>;

// ---- to a lane ----
struct StartStage {
  transport::Transfer transfer;
};
struct CancelStage {
  std::uint64_t token = 0;
};
using LaneMessage = std::variant<StartStage, CancelStage>;

// ---- to control ----
// The answer to MapSegment; the mapping is populated.
struct SegmentMapped {
  RequestToken token = 0;
  Result<Mapping> mapping;
};
struct SegmentRemoved {
  RequestToken token = 0;
  Status status;
};
struct Pong {
  RequestToken token = 0;
};
// The session's ring cannot be trusted any more: control ends the lease with this error.
struct SessionBroken {
  SessionId session;
  Error error;
};
// Nothing is open any more; all sessions may be closed.
struct Drained {};
using ControlMessage = std::variant<SegmentMapped, SegmentRemoved, Pong, SessionBroken, Drained>;

// ---- to watch: what may take long ----
struct MapSegment {
  UniqueFd memory;
  std::uint64_t size = 0;
  RequestToken token = 0;
};
// Unmaps when the message is destroyed; no lane uses the memory any more.
struct DiscardSession {
  std::unique_ptr<Session> session;
};
struct DiscardMapping {
  Mapping mapping;
};
// Something a person should know: logged and put on the board.
struct Event {
  Code code = Code::kOk;  // kOk: not an error
  JobId job;              // 0: none
  std::string text;
};
using WatchMessage = std::variant<MapSegment, DiscardSession, DiscardMapping, Event>;

}  // namespace headrace::service
