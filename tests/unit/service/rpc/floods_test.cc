// Whoever sends all the time, or much at once, takes neither time nor timers away from others.
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/sealed_memory.h"
#include "service/loop/bounded_network.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {
namespace {

// So many messages, each of which resolves a capability that nobody has.
std::vector<kj::byte> Resolves(std::size_t count) {
  capnp::MallocMessageBuilder message;
  auto resolve = message.initRoot<capnp::rpc::Message>().initResolve();
  resolve.setPromiseId(77);
  resolve.initException().setReason("");
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  std::vector<kj::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes.insert(bytes.end(), flat.asBytes().begin(), flat.asBytes().end());
  }
  return bytes;
}

// Sends as fast as it is let, and comes again when it is cut off, until it is destroyed.
class Flooder {
 public:
  explicit Flooder(std::string path) : path_(std::move(path)), thread_([this] { Flood(); }) {}
  ~Flooder() { thread_.request_stop(); }

 private:
  void Flood() {
    const std::vector<kj::byte> bytes = Resolves(64);
    const std::stop_token stop = thread_.get_stop_token();
    while (!stop.stop_requested()) {
      const UniqueFd fd = ConnectTo(path_);
      const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
      while (!stop.stop_requested() &&
             ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
      }
    }
  }

  std::string path_;
  std::jthread thread_;
};

class FloodsTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~FloodsTest() noexcept override {}

  CallerLoop loop_;
  ControlStand stand_;
};

TEST_F(FloodsTest, WhoeverSendsNothingButResolvesLosesTheConnection) {
  const UniqueFd fd = ConnectTo(stand_.socket_path());
  const std::vector<kj::byte> bytes = Resolves(2 * service::kStraysMax);
  ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  const timeval patience{.tv_sec = kPatience / kSecond, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char byte = 0;
  ssize_t size = 0;
  while ((size = ::recv(fd.get(), &byte, 1, 0)) > 0) continue;
  EXPECT_TRUE(size == 0 || errno == ECONNRESET) << errno;
  ASSERT_TRUE(stand_.watch().WaitFor<service::Event>(1));
  stand_.watch().Visit<service::Event>(0, [](const service::Event& event) {
    EXPECT_EQ(event.code, Code::kExhausted);
    EXPECT_VARYING_TEXT(event.text);
  });
}

TEST_F(FloodsTest, AnHonestClientMayResolveAndReleaseAFewTimesForEachCall) {
  Caller caller(loop_, stand_.socket_path());
  for (int i = 0; i < 200; ++i) {
    // Each call lets the capability go that it was given.
    auto call = caller.bootstrap().adminRequest();
    call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
    loop_.Wait<capnp::Response<schema::Bootstrap::AdminResults>>(call.send());
  }
  EXPECT_EQ(stand_.watch().Count<service::Event>(), 0U);
}

TEST_F(FloodsTest, OthersAttachWhileSomeFlood) {
  std::vector<std::unique_ptr<Flooder>> flooders;
  for (int i = 0; i < 4; ++i) flooders.push_back(std::make_unique<Flooder>(stand_.socket_path()));
  ASSERT_TRUE(stand_.watch().WaitFor<service::Event>(1)) << "they are at it";
  const TimeNs begin = MonotonicNow();
  Caller caller(loop_, stand_.socket_path());
  const Attached attached = caller.Attach({.job = "honest"});
  EXPECT_EQ(attached.code, Code::kOk) << attached.text;
  EXPECT_LT(MonotonicNow() - begin, kPatience);
}

// Lower bounds only: whoever is slow anyway passes.
TEST_F(FloodsTest, WhoeverAttachesAgainAndAgainWaits) {
  const TimeNs begin = MonotonicNow();
  for (int visit = 0; visit < 250; ++visit) {
    Caller caller(loop_, stand_.socket_path());
    Attached attached = caller.Attach({.job = "visit" + std::to_string(visit)});
    ASSERT_EQ(attached.code, Code::kOk) << attached.text;
    EXPECT_EQ(caller.Leave(attached.session).code, Code::kOk);
  }
  // 12,500 messages for the attaches alone, of which 10,000 are a burst, at 5,000 a second.
  EXPECT_GE(MonotonicNow() - begin, kSecond / 2);
}

TEST_F(FloodsTest, PeopleHearOfAFloodABoundedNumberOfTimes) {
  {
    const Flooder flooder(stand_.socket_path());
    ASSERT_TRUE(stand_.watch().WaitFor<service::Event>(1));
    stand_.watch().WaitFor<service::Event>(5, kSecond);
  }
  EXPECT_GE(stand_.watch().Count<service::Event>(), 1U);
  EXPECT_LE(stand_.watch().Count<service::Event>(), 4U);
}

TEST_F(FloodsTest, ManyTensorsAreRegisteredAFewAtATime) {
  const ipc::SealedMemory memory = ipc::CreateSealedMemory("segment", ipc::kPageSize).value();
  Caller caller(loop_, stand_.socket_path());
  Attached attached = caller.Attach({});
  ASSERT_EQ(attached.code, Code::kOk) << attached.text;
  auto& session = attached.session;
  ASSERT_EQ(caller.RegisterSegment(session, memory.fd.get(), ipc::kPageSize).code, Code::kOk);
  constexpr std::size_t kCount = 100'000;
  std::vector<service::Tensor> tensors(kCount, {.name = "a.name.that.needs.memory.of.its.own",
                                                .segment = {},
                                                .offset = 0,
                                                .count = 1,
                                                .dtype = DType::kFloat32});
  // All or none: dispatch hears of nothing while one of them is wrong.
  tensors.back().offset = ipc::kPageSize;
  const Numbered refused = caller.RegisterTensors(session, tensors);
  EXPECT_EQ(refused.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(refused.text, "tensor 99999");
  EXPECT_EQ(stand_.dispatch().Count<service::AddTensors>(), 0U);
  tensors.back().offset = 0;
  const Numbered first = caller.RegisterTensors(session, tensors);
  ASSERT_EQ(first.code, Code::kOk) << first.text;
  EXPECT_EQ(first.number, 0U);
  EXPECT_GT(stand_.dispatch().Count<service::AddTensors>(), 20U) << "others had their turns";
  const Numbered next = caller.RegisterTensors(session, {tensors[0]});
  EXPECT_EQ(next.number, kCount);
}

// It guesses their numbers: the first are free again before the last are there, and then it leaves.
TEST_F(FloodsTest, TensorsMayBeReleasedWhileTheyAreRegistered) {
  const ipc::SealedMemory memory = ipc::CreateSealedMemory("segment", ipc::kPageSize).value();
  bool refused = false;
  for (int attempt = 0; attempt < 50 && !refused; ++attempt) {
    Caller caller(loop_, stand_.socket_path());
    Attached attached = caller.Attach({});
    ASSERT_EQ(attached.code, Code::kOk) << attached.text;
    auto& session = attached.session;
    ASSERT_EQ(caller.RegisterSegment(session, memory.fd.get(), ipc::kPageSize).code, Code::kOk);
    auto call = session.registerTensorsRequest();
    auto specs = call.initTensors(200'000);
    for (auto spec : specs) {
      spec.setCount(1);
      spec.setDtype(static_cast<std::uint8_t>(DType::kFloat32));
    }
    bool ended = false;
    auto registered = call.send()
                          .then([&](auto&& answer) {
                            ended = true;
                            refused = Read(answer.getRefusal()).code != Code::kOk;
                          })
                          .eagerlyEvaluate(nullptr);
    while (!ended && caller.ReleaseTensors(session, 0, 1).code != Code::kOk) {
    }
    EXPECT_EQ(caller.Leave(session).code, Code::kOk);
    loop_.Wait(kj::mv(registered));
  }
  EXPECT_TRUE(refused) << "each registration had ended before the rank left";
  Caller other(loop_, stand_.socket_path());
  EXPECT_EQ(other.Attach({.job = "other"}).code, Code::kOk);
}

}  // namespace
}  // namespace headrace::support
