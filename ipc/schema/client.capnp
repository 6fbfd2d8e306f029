@0xb3c1a5f0d2e94c17;
# What a training process and the service say to each other over the unix socket. Never on the data
# path: operations go through the channel. PROTOCOL.md tells the whole exchange.

using Cxx = import "/capnp/c++.capnp";
using Admin = import "admin.capnp";
$Cxx.namespace("headrace::schema");

const protocolVersion :UInt32 = 5;
const gradientsSegment :UInt32 = 0xffffffff;
# In place of a segment's number: the one in which the layout's gradients are.

struct Hello {
  # First thing said by either program on the socket.
  protocolVersion @0 :UInt32;
  program @1 :Text;         # "libheadrace 0.1.0 (python3.11)"; for logs and errors
}

struct Refusal {
  # Why something was not done. code 0 means that it was.
  code @0 :UInt8;           # headrace::Code
  text @1 :Text;
}

interface Descriptor {
  # Carries one file descriptor beside the message; has no methods.
}

interface Bootstrap @0x84cd522f5dc39ed6 {
  # The bootstrap of the socket.
  attach @0 (hello :Hello, request :AttachRequest) -> (refusal :Refusal, session :Session,
                                                       granted :AttachGrant);
  admin @1 (hello :Hello) -> (refusal :Refusal, admin :Admin.Admin);
  joinQuorum @2 (hello :Hello, request :QuorumRequest) -> (refusal :Refusal, waits :Text,
                                                           quorum :Quorum);
  # Who is left of a job, before its ranks attach again. waits not empty: that is waited for, ask
  # again; the connection keeps the place.
}

struct Membership {
  generation @0 :UInt32;    # of the decision; 0: the job as it began
  members @1 :List(UInt32); # growing; a member is the rank that a process had at first
}

struct QuorumRequest {
  job @0 :Text;
  rendezvous @1 :Text;      # as in AttachRequest
  member @2 :UInt32;        # who asks
  membership @3 :Membership;  # the last in which it has met all others
  afterEpoch @4 :UInt32;    # of the job, in which it was
  minWorld @5 :UInt32;      # with fewer ranks the job ends
  graceMs @6 :UInt32;       # for members of which nothing is known
  pid @7 :Int32;            # as the client sees it
  role @8 :UInt8;           # 0 a member; others have no membership: 1 joins, 2 takes a lost one's place
  places @9 :Text;          # text of the last notice of kind 3; empty: there was none
}

struct LostMember {
  member @0 :UInt32;
  cause @1 :Text;
}

struct Quorum {
  membership @0 :Membership;  # the rank of a member is its place in it
  epoch @1 :UInt32;         # for afterEpoch of the attach that follows
  lost @2 :List(LostMember);
  admitted @3 :List(Admission);  # of the node's applicants; between services
  own @4 :UInt32;           # the member that the one who asks has become; to clients
  rendezvous @5 :Text;      # for the attach that follows; empty: as before; to clients
}

struct Admission {
  applicant @0 :UInt32;     # the node's number
  member @1 :UInt32;        # from now on
}

struct AttachRequest {
  job @0 :Text;             # 1 to 63 bytes of printable ASCII without blanks
  rank @1 :UInt32;
  worldSize @2 :UInt32;
  channel @3 :Descriptor;   # sealed memfd, initialised as a channel
  doorbell @4 :Descriptor;  # eventfd
  pid @5 :Int32;            # as the client sees it; the kernel's answer is used where it has one
  timeoutMs @6 :UInt32;     # default for this session's operations; 0: the service's
  rendezvous @7 :Text;      # "host" or "host:port" of the job's leader; empty: all ranks are here
  architecture @8 :Text;    # "all-reduce", "parameter-server"; empty: as the leader has it
  afterEpoch @9 :UInt32;    # of the job, in which this rank was before; 0: it begins
  rendezvousFrom @10 :Text; # where the client has the rendezvous from, for people: "MASTER_ADDR"
  canReconnect @11 :Bool;   # it comes back by itself when its service ends
  members @12 :List(UInt32);  # of the job, by rank: Membership; empty: each is what its rank says
  sendsClass @13 :Text;     # of rank 0: "above" or "same", of the job's sends and receives; empty:
                            # as the job has it, which begins with above. Of other ranks it says nothing
  slowS @14 :UInt32;        # of rank 0: who is slow for so many seconds is named; 0: nobody looks
  slowLeastWorld @15 :UInt32;  # likewise: and evicted, where so many ranks are left; 0: nobody is
  minWorld @16 :UInt32;     # of rank 0: with how many ranks the job may go on; 0: with all only
}

struct AttachGrant {
  sessionId @0 :UInt64;
  jobId @1 :UInt32;
  epoch @2 :UInt32;
  timeoutMs @3 :UInt32;
}

struct TensorSpec {
  name @0 :Text;            # at most 255 bytes; empty: none
  segment @1 :UInt32;
  offset @2 :UInt64;        # bytes from the start of the segment; a multiple of the element size
  count @3 :UInt64;         # elements
  dtype @4 :UInt8;          # headrace::DType
  order @5 :UInt32;         # place in forward order, 0 = input layer
}

interface Session {
  # One attached rank. Dropping it, or the socket, ends the session and its memory.
  registerSegment @0 (memory :Descriptor, size :UInt64) -> (refusal :Refusal, segment :UInt32);
  # Returns when the service has mapped the segment.
  releaseSegment @1 (segment :UInt32) -> (refusal :Refusal);
  # Refused while tensors lie in it or operations on it are open.
  registerTensors @2 (tensors :List(TensorSpec)) -> (refusal :Refusal, first :UInt32);
  # All or none; ids are first, first + 1, ... in the order given.
  releaseTensors @3 (first :UInt32, count :UInt32) -> (refusal :Refusal);
  leave @4 () -> (refusal :Refusal);
  # An orderly end: open operations of this rank are ended, later ones of others name it.
  setLayout @5 (first :UInt32, count :UInt32, reduction :UInt8, policy :Text,
             codec :Text, codecs :List(Text), compressAfter :UInt64,
             residuals :UInt64, iterationsBefore :UInt64, adaptive :Bool,
             rows :List(UInt64), residualsSegment :UInt32 = .gradientsSegment,
             factorsRank :UInt32)
      -> (refusal :Refusal);
  # The session's gradients: tensors first .. first + count - 1, in forward order, in one segment.
  # Once a session. policy empty: as the leader has it. codec: in which their sums cross between
  # nodes, but for small ones; empty: none. codecs: of each by itself; empty ones: as codec says.
  # compressAfter: so many iterations cross as they are. residuals: where in residualsSegment there is
  # room for what encodings leave out; in the gradients' own segment it is behind them, and 0 is
  # nowhere. iterationsBefore: so many had
  # ended when the job lost a service; the largest of all ranks counts. adaptive: the optimizer divides
  # by what gradients were, as Adam does, so that some codecs make it diverge. rows: of each, where it
  # is a matrix, and 0 where it is none; empty: nothing is said. factorsRank: behind the residuals there
  # is room for the right factors of matrices of at most that rank (powersgd).
  registerDeviceSegment @6 (handle :DeviceHandle, pieces :List(Descriptor))
      -> (refusal :Refusal, segment :UInt32);
  # Memory of a GPU, as registerSegment. Returns when the service has mapped it for all GPUs that
  # reach it; the descriptors may be closed then, and the memory stays until the segment goes.
  registration @7 () -> (bytes :UInt64);
  # How much of the segment that is being registered is mapped so far; 0: none is, or nothing of it.
  # Answered at once. Whoever waits for registerSegment waits on for as long as this grows.
  lateness @8 () -> (text :Text);
  # What the job waits for, when it has not begun late_ms after the attach, or before that as soon as
  # a rank or node was refused that it may wait for; empty: it has begun or ended. Once a session.
  stopping @9 () -> (text :Text);
  # Answered when the service begins to stop, as it was asked to: the end of the socket that follows
  # is no crash. text: what the rank's user should know, empty: nothing. Once a session.
  notice @10 () -> (kind :UInt8, text :Text);
  # Answered when there is something that the rank is to know. Kind 1: the session was ended, text
  # says by whom. 2: others wait to join the job. 3: the job of several nodes runs; text says where its
  # services are, and the client returns it in a QuorumRequest, since a service that begins again has
  # forgotten it. Asked again after each answer; one at a time.
}

struct DeviceHandle {
  # headrace::DeviceHandle, field by field. A claim: the service holds it against the driver.
  kind @0 :UInt32;          # headrace::DeviceHandleKind
  exporterPid @1 :UInt32;   # getpid() there
  device @2 :Data;          # the GPU's UUID, 16 bytes
  offset @3 :UInt64;        # bytes from the first that is mapped to the first that is meant
  size @4 :UInt64;          # bytes that are meant
  pieceSize @5 :UInt64;     # bytes behind each descriptor; 0 for legacy handles
  legacy @6 :Data;          # CUDA's IPC handle, 64 bytes; empty for descriptors
}
