@0xe4a9c02b6f7d1835;
# What the services of two nodes say to each other over TCP. The service that connects is a node of
# jobs that the service that accepts leads. PROTOCOL.md tells the whole exchange.

using Cxx = import "/capnp/c++.capnp";
using Refusal = import "client.capnp".Refusal;
using Quorum = import "client.capnp".Quorum;
using Membership = import "client.capnp".Membership;
$Cxx.namespace("headrace::schema");

const peerProtocolVersion :UInt32 = 17;

struct PeerHello {
  protocolVersion @0 :UInt32;
  program @1 :Text;         # "headraced 0.1.0"; for errors
  node @2 :Text;            # 1 to 63 bytes of printable ASCII without blanks
  instance @3 :UInt64;      # drawn by each service at its start
  server @4 :Bool;          # has no ranks, owns shares of sums
  addresses @5 :List(Data); # of its lanes between nodes, in order
  ncclLanes @6 :UInt32;     # the first so many of these carry GPU memory by NCCL; 0: none does
  control @7 :Text;         # "host:port" where this service listens for others; the host may be "*"
  railAddresses @8 :List(Data);  # texts, "address:port": where it listens on its rails, too
}

struct PeerChannel {        # the messages of two services, which outlive a connection: PEERS.md
  id @0 :Data;              # 16 bytes, drawn by the side that connects
  resumes @1 :Bool;         # it was there before this connection
  received @2 :UInt64;      # number of the last message of the accepting side that has come
}

interface PeerBootstrap @0xfe421e30d1fbe404 {
  # The bootstrap of the accepting side. Whoever has not said hello after five seconds is cut off.
  hello @0 (hello :PeerHello, port :PeerPort, channel :PeerChannel)
      -> (refusal :Refusal, hello :PeerHello, port :PeerPort, received :UInt64);
  # received: likewise, of the connecting side.
  describe @1 () -> (protocolVersion :UInt32, program :Text, node :Text);
  # Who answers here, for people who look whether this address can be reached: no hello is needed.
}

interface PeerPort {
  # Each side has that of the other. Both calls are answered at once. The answer to send says that
  # its messages have come and need not be sent again; first is the number of the first of them.
  send @0 (messages :List(PeerMessage), first :UInt64) -> ();
  ping @1 () -> (unixNs :Int64);  # when it was answered, by the clock of whoever answers
}

struct CostLine {
  startupS @0 :Float64;
  sPerByte @1 :Float64;
}

struct CodecCost {
  codec @0 :UInt8;          # headrace::Codec::Kind
  parameter @1 :UInt8;
  share @2 :Float64;        # of float32's bytes that cross
  encodeSPerByte @3 :Float64;  # processor time, for each of float32's bytes
  decodeSPerByte @4 :Float64;
  ofTransfers @5 :Bool;     # as long as transfers took, waits for other nodes included
}

struct AgreedNode {
  name @0 :Text;
  ranks @1 :List(UInt32);
  addresses @2 :List(Data);
  control @3 :Text;         # "host:port" of its service; empty: not known
}

struct Agreement {
  job @0 :Text;
  worldSize @1 :UInt32;
  epoch @2 :UInt32;
  key @3 :UInt64;
  planVersion @4 :UInt32;
  blockBytes @5 :UInt64;
  algorithm @6 :UInt8;      # headrace::transport::Algorithm
  nodes @7 :List(AgreedNode);
  serversCount @8 :UInt32;
  verify @9 :UInt32;        # results of every so many iterations are compared; 0: of none
  leader @10 :Text;         # name of the node whose service leads the job
}

struct LayoutTensor {
  name @0 :Text;            # for people, cut to 255 bytes
  offset @1 :UInt64;        # bytes behind the lowest tensor
  count @2 :UInt64;         # elements
  dtype @3 :UInt8;          # headrace::DType
  codec @4 :UInt8;          # headrace::Codec::Kind, in which its sums cross between nodes
  codecParameter @5 :UInt8; # of codecs that have one; else 0
  keepsCodec @6 :Bool;      # no person may choose another
  allowed @7 :UInt64;       # headrace::AllowedCodecs, of which the plan chooses; 0: codec it is
  rows @8 :UInt64;          # of a matrix; 0: it is none
}

struct Layout {
  reduction @0 :UInt8;      # headrace::Reduction
  tensors @1 :List(LayoutTensor);
  namesHash @2 :UInt64;     # of all names in their order, whole ones: PROTOCOL.md
  compressAfter @3 :UInt64; # iterations that cross as they are before any is encoded
  iterationsBefore @4 :UInt64;  # of the job's earlier epochs, as the node's ranks have counted them
}

struct SeenIteration {   # how one iteration went on a node, in seconds with idle lanes
  iteration @0 :UInt64;
  offsetS @1 :Float64;         # to its begin from the end of the last block of the one before
  forwardBeginS @2 :Float64;   # from its begin, when the forward pass asks for the first gradient
  releaseS @3 :List(Float32);  # per tensor in forward order, of the last rank
  forwardS @4 :List(Float32);
}

struct NodeSteering {
  kind @0 :UInt8;           # headrace::SteeringKind
  value @1 :UInt64;
  uid @2 :UInt32;           # who asks
  node @3 :Text;            # where
}

struct MemberReport {
  member @0 :UInt32;
  state @1 :UInt8;          # 1 asks, 2 attached, 3 lost; of an applicant, whose number is 2^31 or
                            # more: 4 joins, 5 takes a lost one's place
  cause @2 :Text;           # of a lost one
}

struct JobPlace {
  node @0 :Text;            # its name; empty: not known
  address @1 :Text;         # "host:port" of its service; empty: that of the service that says so
}

struct JobPlaces {          # where a job lives, and who is left of it
  generation @0 :UInt32;    # of the last decision that is known, with its members; none: there was none
  members @1 :List(UInt32);
  epoch @2 :UInt32;         # of the job as it runs, or of the decision
  places @3 :List(JobPlace);  # the leader's first, then those of its ranks by their lowest ranks
  former @4 :List(JobPlace);  # that led it before
}

struct PeerMessage {
  job @0 :UInt32;           # as the two ends of this connection know it
  union {
    # From a node.
    joinJob :group {
      name @1 :Text;
      worldSize @2 :UInt32;
      uid @3 :UInt32;
      architecture @4 :Text;
    }
    reportRankAttached :group {
      rank @5 :UInt32;
      pid @6 :Int32;
      afterEpoch @54 :UInt32;  # of the job, in which the rank was before; 0: it begins
      membersHash @88 :UInt64;  # of the job's members by rank, as the rank was told; 0: it was not
    }
    reportRankLost :group {
      rank @7 :UInt32;
      cause @8 :Text;
      exited @55 :Bool;     # its process, which cannot come back as that rank
    }
    reportRankLeft :group {
      rank @9 :UInt32;
      posted @10 :UInt64;
      iterations @30 :UInt64;
    }
    reportJobFailed :group {
      code @11 :UInt8;      # headrace::Code
      cause @12 :Text;
    }
    forgetJob @13 :Void;
    jobOpened @14 :Refusal;    # code 0: done
    jobMeasured :group {
      refusal @15 :Refusal;
      costs @16 :List(CostLine);
    }
    jobStarted :group {
      hash @17 :UInt64;
    }
    reportLayout :group {
      layout @32 :Layout;
      policy @33 :UInt8;    # headrace::plan::Policy; 0: as the leader has it
    }
    reportTimesSeen :group {
      iteration @34 :UInt64;
      releaseS @35 :List(Float64);
      forwardS @36 :List(Float64);
      iterationS @37 :Float64;
      costs @38 :List(CostLine);  # the lane inside the node, then those between
      runningS @56 :Float64;      # of iterationS: the forward pass did not stand still; 0: not said
      iterations @66 :List(SeenIteration);  # the last ones, each by itself
      contention @67 :Float64;    # of the rate of computing, lost while a block is under way
      codecs @81 :List(CodecCost);  # of transfers between the job's nodes
      railsChanged @90 :Bool;  # a rail was lost or is back: costs are of the time since
    }
    requestPolicy :group {
      policy @39 :UInt8;
    }
    reportPlanAck :group {
      version @40 :UInt32;
      hash @41 :UInt64;
      iteration @42 :UInt64;
    }
    requestSteering @50 :NodeSteering;
    reportRankLate :group {
      text @51 :Text;
    }
    reportBlockHashed :group {       # what the node's ranks have got in one block
      planned @57 :Bool;    # a block of the plan, and not of an operation
      number @58 :UInt64;   # of the iteration, or of the operation
      block @59 :UInt32;    # place in the plan, or within the operation
      hash @60 :UInt64;
    }
    unused62 @62 :Void;     # of versions before 8: notices of sends, which go over the links now
    unused63 @63 :Void;
    unused64 @64 :Void;
    unused65 @65 :Void;
    reportQuorum :group {   # job: the node's number of the question
      name @68 :Text;
      uid @69 :UInt32;
      membership @70 :Membership;  # the newest that those who ask were in
      epoch @71 :UInt32;
      minWorld @72 :UInt32;
      graceMs @73 :UInt32;
      members @74 :List(MemberReport);  # all that the node knows of, in growing order
      meetsHere @82 :Bool;  # the service that is told is where the node meets the others
      stallMs @91 :UInt32;  # for members that are attached and do not ask; 0: without limit
      placesEpoch @83 :UInt32;  # JobPlaces.epoch of those that the node knows; 0: none
    }
    leaveQuorum @75 :Void;  # nobody there asks any more
    reportJobPlaces :group {  # what the node knows of a job, for those that ask there
      name @84 :Text;
      uid @85 :UInt32;
      places @86 :JobPlaces;
    }
    # From the leader.
    announceQuorumWaits :group {
      text @76 :Text;
    }
    announceQuorum :group {
      quorum @77 :Quorum;
    }
    announceQuorumRefused :group {
      refusal @78 :Refusal;
      members @79 :List(UInt32);  # those; none: all who ask, and it is over
    }
    announceSteering @52 :NodeSteering;
    announceRankLate :group {
      text @53 :Text;
    }
    announceJobForming :group {
      text @18 :Text;
      refused @61 :Bool;
    }
    openJob :group {
      self @19 :UInt32;
      agreement @20 :Agreement;
    }
    measureJob @21 :Void;
    startJob :group {
      costs @22 :List(CostLine);
      hash @23 :UInt64;
    }
    announceJobFailed @24 :Refusal;
    announceRankLeft :group {
      rank @25 :UInt32;
      posted @26 :UInt64;
      iterations @31 :UInt64;
      cause @27 :Text;
    }
    closeJob @28 :Void;
    planPiece :group {
      version @43 :UInt32;
      index @44 :UInt32;    # of the piece, from 0
      last @45 :Bool;
      text @46 :Data;       # a piece of the canonical form
    }
    announcePlanSwitch :group {
      version @47 :UInt32;
      fromIteration @48 :UInt64;
      beforeS @49 :Float64;
      iterationsBefore @89 :UInt64;  # of the job's earlier epochs, as the rank that has counted most
    }
    announceMembersWait @80 :Void;  # to join the job
    announceJobPlaces :group {  # job: the node's number of the question, which is asked there, too
      places @87 :JobPlaces;
    }
    # Either way.
    goodbye :group {
      cause @29 :Text;
    }
  }
}
