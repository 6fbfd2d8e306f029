@0xd8e0b7a3f4516c29;
# What headracectl asks the service itself. What can be read from the board is read there, so that
# it works while the service is stuck; this is for what needs the service's word.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("headrace::schema");

interface Admin {
  describe @0 () -> (description :Description);
  # A bounded, side-effect-free round trip through control and dispatch: proves the data path
  # answers, not only the socket.
  ping @1 () -> (controlNs :Int64, dispatchNs :Int64);
  setPolicy @2 (job :Text, policy :Text, owner :Int64 = -1) -> (code :UInt8, text :Text);
  # Asks the job's leader for a plan by that policy from now on. code: headrace::Code, 0: passed on.
  # owner: uid of the user whose job of that name is meant; -1: the only one that the caller may
  # change.
  steer @3 (job :Text, steering :Steering, owner :Int64 = -1) -> (code :UInt8, text :Text);
  # Asks every node of the job for something. code: headrace::Code, 0: passed on. The job's owner,
  # root and the user of the service may. owner: as for setPolicy.
  probe @4 () -> (dispatchNs :Int64, lanes :List(LaneProbe), parts :List(PartProbe));
  # A bounded, side-effect-free way through every thread that a client depends on: dispatch
  # (dispatchNs -1: no answer), every lane, and the other parts.
  peers @5 () -> (peers :List(PeerProbe));
  # The services of other nodes that this one is connected to or has been told of.
  tryPeer @6 (address :Text) -> (code :UInt8, text :Text, steps :List(PeerStep));
  # How far the service gets at that address, with its own certificate, up to the first step that
  # fails. No job is touched. For root and the service's user; code: headrace::Code, 0: it was tried.
  drain @7 (deadlineMs :UInt64) -> (code :UInt8, text :Text, sessions :UInt32, waits :List(Text));
  # Has the service move its jobs over to the next one, and end. It takes no session any more; jobs
  # that can reconnect are closed once what is posted has ended, `waits` names those that cannot,
  # which have until the deadline. Answered at once. Root and the user of the service may.
}

struct PeerStep {
  name @0 :Text;            # "name", "port", "handshake", "version"
  found @1 :Text;           # of a step that went well
  code @2 :UInt8;           # headrace::Code; 0: it went well
  text @3 :Text;            # what went wrong
}

struct Steering {
  kind @0 :UInt8;           # headrace::SteeringKind
  value @1 :UInt64;
  forced @2 :Bool;          # of compress: also a codec with which the job's optimizer may diverge
}

struct LaneProbe {
  name @0 :Text;
  answered @1 :Bool;        # within a second
  ns @2 :Int64;
  code @3 :UInt8;           # headrace::Code of what it answered
  text @4 :Text;
}

struct PartProbe {
  name @0 :Text;            # "peers", "watch"
  answered @1 :Bool;        # within a second
  ns @2 :Int64;
}

struct PeerProbe {
  name @0 :Text;            # of the node; empty while it has not said it
  address @1 :Text;
  leads @2 :Bool;           # this service is a node of its jobs; else it is one of ours
  connected @3 :Bool;
  why @4 :Text;             # it is not connected; empty: no job needs it now
  roundTripNs @5 :Int64;    # the best of the last few; -1: none yet
  clockOffsetNs @6 :Int64;  # its clock less ours by that one, within half of it
  refused @7 :Bool;         # why it is not connected: one of the two would not have the other
}

struct Description {
  version @0 :Text;
  protocolVersion @1 :UInt32;
  pid @2 :Int32;
  config @3 :Text;          # the whole configuration, as TOML
}
