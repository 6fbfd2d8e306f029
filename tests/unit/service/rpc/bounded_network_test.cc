// What a message costs the one who sends it, as the listener puts a connection together.
#include "service/loop/bounded_network.h"

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize-async.h>
#include <gtest/gtest.h>
#include <kj/async-io.h>

#include <string>

#include "service/accounts/arrivals.h"
#include "service/loop/message_pacer.h"
#include "service/rpc/bounded_stream.h"

namespace headrace::service {
namespace {

// The units that a message of about so many bytes was booked with.
TimeNs CostOf(std::size_t bytes, capnp::MallocMessageBuilder&& message) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::CapabilityPipe pipe = io.provider->newCapabilityPipe();
  const auto cut = [](const std::string& why) { ADD_FAILURE() << why; };
  Arrivals arrivals;
  BoundedStream stream(
      *pipe.ends[0], io.provider->getTimer(), arrivals, 1000,
      [] { return BoundedStream::Allowance{.has_session = true}; }, cut);
  capnp::TwoPartyVatNetwork network(stream, kDescriptorsOfACall,
                                    capnp::rpc::twoparty::Side::SERVER);
  // One unit a second, so that the time the test takes is next to nothing beside what is booked.
  MessagePacer pace(1, 1);
  BoundedNetwork bounded(
      network, io.provider->getTimer(), pace, [&stream] { return stream.message_bytes(); }, cut);
  auto connection = bounded.accept().wait(io.waitScope);
  message.initRoot<capnp::rpc::Message>().initResolve().initException().setReason(
      std::string(bytes, 'x').c_str());
  const kj::Promise<void> written =
      capnp::writeMessage(*pipe.ends[1], message).eagerlyEvaluate([](kj::Exception&& exception) {
        ADD_FAILURE() << exception.getDescription().cStr();
      });
  KJ_IF_MAYBE (received, connection->receiveIncomingMessage().wait(io.waitScope)) {
    EXPECT_EQ((*received)->getBody().getAs<capnp::rpc::Message>().which(),
              capnp::rpc::Message::RESOLVE);
  } else {
    ADD_FAILURE() << "the connection ended";
  }
  // The burst is one unit: the next waits for all that was booked.
  return (pace.Book(1, MonotonicNow()) + kSecond / 2) / kSecond;
}

constexpr TimeNs kPages = 1000;

TEST(BoundedNetwork, AMessageCostsMoreTheLargerItIs) {
  EXPECT_EQ(CostOf(10, capnp::MallocMessageBuilder()), 1);
  const TimeNs large = CostOf(kPages * kBytesPerMessage, capnp::MallocMessageBuilder());
  EXPECT_GT(large, kPages / 2);
  EXPECT_LE(large, kPages + 1);
}

// Cap'n Proto does not say how large such a message is.
TEST(BoundedNetwork, AMessageOfSeveralSegmentsCostsAsMuch) {
  const TimeNs large =
      CostOf(kPages * kBytesPerMessage,
             capnp::MallocMessageBuilder(8, capnp::AllocationStrategy::FIXED_SIZE));
  EXPECT_GT(large, kPages / 2);
  EXPECT_LE(large, kPages + 1);
}

}  // namespace
}  // namespace headrace::service
