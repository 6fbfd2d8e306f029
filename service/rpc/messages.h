// The messages to rpc: answers to its requests, and ends of sessions, jobs or the service.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/request.h"
#include "service/dispatch/messages.h"
#include "service/session/quorum.h"
#include "service/session/segment_memory.h"

namespace headrace::service {

// The answer to MapSegment, whose memory's page tables are filled, and to MapDeviceSegment.
struct SegmentMapped {
  RequestToken token = 0;
  Result<SegmentMemory> memory;
  std::uint32_t uid = 0;  // as it was asked for
};
// How much of a segment is mapped so far; sent a few times a second. May get lost.
struct SegmentProgress {
  RequestToken token = 0;
  std::uint64_t bytes = 0;
};
struct SegmentRemoved {
  RequestToken token = 0;
  Status status;
};
struct Pong {
  RequestToken token = 0;
  std::uint32_t lanes_count = 0;
};
// The session's ring cannot be trusted any more, or its rank is evicted: rpc ends the lease with
// this error. `evicted`: as if its process were gone, so that the job goes on without it or not at
// all.
struct SessionBroken {
  SessionId session;
  Error error;
  bool evicted = false;
};
// The service holds `bytes` of memory for what encodings leave out of the job's gradients, since no
// rank has room for it. They are booked on this session, the job's first here; answered by
// ResidualsRefused where its user may not have so much.
struct ResidualsAllocated {
  SessionId session;
  std::uint64_t bytes = 0;
};
// So many of these bytes are free again, while the job goes on.
struct ResidualsFreed {
  SessionId session;
  std::uint64_t bytes = 0;
};
// Blocks of a job need memory of the service's own on their way to other nodes: a GPU's, memory of
// the host that is pinned, or memory of the host. It is booked on this session, for GPUs before it
// is made; answered by ScratchBooked, in any case.
struct BookScratch {
  SessionId session;
  std::uint64_t bytes = 0;
  ScratchRequest request;
};
// Dispatch has let go of the session and of its memory, which mapping unmaps before it maps more
// for the same user; for a session on which memory of its job is booked, the job is over,
// too.
struct SessionDiscarded {
  SessionId session;
};
// Nothing is open any more; all sessions may be closed.
struct Drained {};
// The answer of an actor other than dispatch to Ping.
enum class ProbedPart : std::uint8_t { kPeers, kWatch, kMapping };
struct PartAnswered {
  RequestToken token = 0;
  ProbedPart part = ProbedPart::kPeers;
};
// The answer of peers to CheckRank, HandInLayout, AskForming, ChangeSetting and StopPeers.
struct Answered {
  RequestToken token = 0;
  Status status;
};
// The answer of peers to AskQuorum. `waits` not empty: there is no decision yet, for that.
struct QuorumAnswered {
  RequestToken token = 0;
  Result<Quorum> quorum;
  std::string waits;
};
// Others wait to join the job; its ranks here are to know.
struct MembersWait {
  JobId job;
};
// The job runs: where its services are (PlacesText), which its ranks here keep.
struct JobPlaced {
  JobId job;
  std::string places;
};
// Another service, for people.
struct PeerView {
  std::string name{};  // of the node; empty while it has not said it
  std::string address{};
  bool leads = false;  // this service is a node of its jobs; else it is one of ours
  bool connected = false;
  std::string why{};           // it is not connected; empty: no job needs it now
  bool refused = false;        // because one of the two would not have the other
  TimeNs round_trip_ns = -1;   // -1: none yet
  TimeNs clock_offset_ns = 0;  // its clock less ours by that round trip
  std::uint64_t resumes = 0;   // times that its connection broke and another took its place
  TimeNs unlinked_ns = 0;      // without a connection that answered, until each of them did
};
// What came of an attempt to reach a service at an address, step by step, up to the first that
// failed.
struct PeerStep {
  std::string name;  // "name", "port", "handshake", "version"
  Status status{};
  std::string found;  // of a step that went well, for people
};
struct PeerTried {
  RequestToken token = 0;
  std::vector<PeerStep> steps;
};
struct PeersListed {
  RequestToken token = 0;
  std::vector<PeerView> peers;
};
// Http wants a probe. Answered by ProbeEnded.
struct AskProbe {
  RequestToken token = 0;
};
// An event loop has ended, and what it did is done by nobody.
struct LoopFailed {
  std::string cause;
};
// A GPU's context is broken, for that cause: CUDA gives it back to no process but a new one.
struct GpuBroken {
  std::string cause;
};
// JobFailed: the job takes no rank until all are gone.
using RpcMessage =
    std::variant<SegmentMapped, SegmentProgress, SegmentRemoved, Pong, SessionBroken,
                 ResidualsAllocated, ResidualsFreed, BookScratch, SessionDiscarded, Drained,
                 LaneAnswered, PartAnswered, JobFailed, Answered, PeersListed, PeerTried,
                 QuorumAnswered, MembersWait, JobPlaced, AskProbe, LoopFailed, GpuBroken>;

}  // namespace headrace::service
