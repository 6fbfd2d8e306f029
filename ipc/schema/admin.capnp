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
  setPolicy @2 (job :Text, policy :Text) -> (code :UInt8, text :Text);
  # Asks the job's leader for a plan by that policy from now on. code: headrace::Code, 0: passed on.
}

struct Description {
  version @0 :Text;
  protocolVersion @1 :UInt32;
  pid @2 :Int32;
  config @3 :Text;          # the whole configuration, as TOML
}
