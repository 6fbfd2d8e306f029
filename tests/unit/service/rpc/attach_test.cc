// Attaching over a real socket, and each way of being refused.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <initializer_list>
#include <string>

#include "ipc/channel.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {
namespace {

class AttachTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~AttachTest() noexcept override {}

  // Refused with this code and these values in the text, and dispatch has heard of nothing.
  void ExpectRefused(const AttachCall& fields, Code code,
                     std::initializer_list<std::string_view> values = {}) {
    Caller caller(loop_, stand_.socket_path());
    const std::size_t opened = stand_.dispatch().Count<service::OpenSession>();
    const Attached attached = caller.Attach(fields);
    EXPECT_EQ(attached.code, code) << attached.text;
    ExpectText(__FILE__, __LINE__, attached.text, values, Varies::kYes);
    EXPECT_EQ(stand_.dispatch().Count<service::OpenSession>(), opened);
  }

  CallerLoop loop_;
  ControlStand stand_;
  const std::string own_pid_ = "pid " + std::to_string(::getpid());
};

TEST_F(AttachTest, OpensASessionWithWhatTheKernelSays) {
  Caller caller(loop_, stand_.socket_path());
  const Attached attached = caller.Attach({.rank = 1, .world_size = 3});
  ASSERT_EQ(attached.code, Code::kOk) << attached.text;
  EXPECT_EQ(attached.timeout_ms, 1234U) << "the service's default";
  stand_.dispatch().Visit<service::OpenSession>(0, [&attached](const service::OpenSession& open) {
    ASSERT_NE(open.session, nullptr);
    const service::SessionIdentity& identity = open.session->identity();
    EXPECT_EQ(identity.id.value, attached.session_id);
    EXPECT_EQ(identity.job.value, attached.job_id);
    EXPECT_EQ(identity.job_name, "train");
    EXPECT_EQ(identity.rank, 1U);
    EXPECT_EQ(identity.world_size, 3U);
    EXPECT_EQ(identity.pid, ::getpid());
    EXPECT_EQ(identity.uid, ::getuid());
    EXPECT_EQ(identity.timeout_ms, 1234U);
    EXPECT_GE(open.session->doorbell(), 0);
  });
}

TEST_F(AttachTest, KeepsTheTimeoutThatTheClientAskedFor) {
  Caller caller(loop_, stand_.socket_path());
  EXPECT_EQ(caller.Attach({.timeout_ms = 77}).timeout_ms, 77U);
  ExpectRefused({.rank = 1, .timeout_ms = UINT32_MAX}, Code::kInvalidArgument, {"4294967295 ms"});
}

TEST_F(AttachTest, NamesBothVersionsAndBothPrograms) {
  ExpectRefused({.protocol_version = 9, .program = "libheadrace 9.9"}, Code::kVersionMismatch,
                {"0.1.0", "9.9"});
  ExpectRefused({.protocol_version = 2, .program = "libheadrace 0.0"}, Code::kVersionMismatch,
                {"0.0"});
}

TEST_F(AttachTest, KeepsControlCharactersOutOfItsAnswer) {
  ExpectRefused({.protocol_version = 9, .program = "evil\nline\x1b[31m"}, Code::kVersionMismatch,
                {"evil?line?[31m"});
}

TEST_F(AttachTest, RefusesARankThatIsAttached) {
  Caller first(loop_, stand_.socket_path());
  const Attached attached = first.Attach({});
  ASSERT_EQ(attached.code, Code::kOk);
  ExpectRefused({}, Code::kAlreadyExists, {"rank 0", own_pid_});
}

TEST_F(AttachTest, RefusesASecondSessionOnOneConnection) {
  Caller caller(loop_, stand_.socket_path());
  const Attached attached = caller.Attach({});
  EXPECT_EQ(caller.Attach({.rank = 1}).code, Code::kAlreadyExists);
}

TEST_F(AttachTest, RefusesAnotherWorldSize) {
  Caller first(loop_, stand_.socket_path());
  const Attached attached = first.Attach({.world_size = 2});
  ExpectRefused({.rank = 1, .world_size = 4}, Code::kMismatch);
}

TEST_F(AttachTest, RefusesRanksAndNamesThatCannotBe) {
  ExpectRefused({.rank = 2, .world_size = 2}, Code::kInvalidArgument, {"rank 2"});
  ExpectRefused({.world_size = 65}, Code::kInvalidArgument);
  ExpectRefused({.job = "two words"}, Code::kInvalidArgument);
}

TEST_F(AttachTest, RefusesWithoutADescriptor) {
  ExpectRefused({.channel = -1}, Code::kInvalidArgument);
  ExpectRefused({.doorbell = -1}, Code::kInvalidArgument);
}

TEST_F(AttachTest, RefusesAChannelThatIsNoSealedMemory) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ExpectRefused({.channel = null.get()}, Code::kInvalidArgument);
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(ipc::kChannelSize)), 0);
  ExpectRefused({.channel = unsealed.get()}, Code::kInvalidArgument);
  const auto small = ipc::CreateSealedMemory("small", ipc::kPageSize);
  ExpectRefused({.channel = small->fd.get()}, Code::kInvalidArgument, {"4096 bytes"});
  const auto blank = ipc::CreateSealedMemory("blank", ipc::kChannelSize);
  ExpectRefused({.channel = blank->fd.get()}, Code::kInvalidArgument);
}

TEST_F(AttachTest, RefusesADoorbellThatIsNoEventfd) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ExpectRefused({.doorbell = null.get()}, Code::kInvalidArgument, {"/dev/null"});
}

TEST_F(AttachTest, TakesARefusedClientThatComesBackRight) {
  Caller caller(loop_, stand_.socket_path());
  EXPECT_EQ(caller.Attach({.channel = -1}).code, Code::kInvalidArgument);
  EXPECT_EQ(caller.Attach({}).code, Code::kOk);
}

TEST_F(AttachTest, RefusesWhileDispatchIsBehindAndRecovers) {
  stand_.dispatch().SetFull(true);
  ExpectRefused({}, Code::kBusy);
  stand_.dispatch().SetFull(false);
  Caller caller(loop_, stand_.socket_path());
  EXPECT_EQ(caller.Attach({}).code, Code::kOk);
}

TEST_F(AttachTest, SaysToPeopleWhoWasRefusedButNotForever) {
  Caller caller(loop_, stand_.socket_path());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(caller.Attach({.job = "two words"}).code, Code::kInvalidArgument);
  }
  EXPECT_EQ(stand_.watch().Count<service::Event>(), 4U);
  stand_.watch().Visit<service::Event>(
      0, [this](const service::Event& event) { EXPECT_VARYING_TEXT(event.text, own_pid_); });
}

TEST_F(AttachTest, RefusesAQuestionWhoIsLeftWithPlacesThatAreNone) {
  Caller caller(loop_, stand_.socket_path());
  auto call = caller.bootstrap().joinQuorumRequest();
  call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  auto request = call.getRequest();
  request.setJob("train");
  request.getMembership().initMembers(1).set(0, 0);
  request.setAfterEpoch(1);
  request.setPlaces("a a:7733\nb\n");
  const auto answer =
      loop_.Wait<capnp::Response<schema::Bootstrap::JoinQuorumResults>>(call.send());
  EXPECT_EQ(static_cast<Code>(answer.getRefusal().getCode()), Code::kInvalidArgument);
  EXPECT_TEXT(std::string(answer.getRefusal().getText().cStr()), "place 1", "\"b\"", "host:port");
}

TEST(AttachLimit, TellsConnectionsBeyondTheLimit) {
  CallerLoop loop;
  ControlStand stand({.connections_max = 4});
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<Attached> sessions;  // a session that is dropped is a rank that is lost
  // One user gets three of four connections.
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    callers.push_back(std::make_unique<Caller>(loop, stand.socket_path()));
    sessions.push_back(callers.back()->Attach({.rank = rank, .world_size = 8}));
    ASSERT_EQ(sessions.back().code, Code::kOk);
  }
  Caller beyond(loop, stand.socket_path());
  const Attached refused = beyond.Attach({.rank = 3, .world_size = 8});
  EXPECT_EQ(refused.code, Code::kExhausted);
  EXPECT_VARYING_TEXT(refused.text);
}

}  // namespace
}  // namespace headrace::support
