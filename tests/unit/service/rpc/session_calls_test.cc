// Segments, tensors and leaving, over a real socket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/attached.h"

namespace headrace::support {
namespace {

constexpr std::uint64_t kSize = 4 * ipc::kPageSize;

class SessionCallsTest : public AttachedTest {
 protected:
  Numbered Register() { return caller_->RegisterSegment(session_, memory_.fd.get(), kSize); }
  static service::Tensor At(std::uint64_t offset) {
    return {.name = "w", .segment = {}, .offset = offset, .count = 8, .dtype = DType::kFloat32};
  }

  ipc::SealedMemory memory_ = ipc::CreateSealedMemory("segment", kSize).value();
};

TEST_F(SessionCallsTest, HandsAMappedSegmentToDispatch) {
  Begin();
  const Numbered answer = Register();
  ASSERT_EQ(answer.code, Code::kOk) << answer.text;
  memory_.mapping.data()[5] = std::byte{42};
  stand_->dispatch().Visit<service::AddSegment>(0, [this](const service::AddSegment& added) {
    EXPECT_EQ(added.session, id_);
    ASSERT_EQ(added.memory.size(), kSize);
    EXPECT_EQ(added.memory.data()[5], std::byte{42}) << "the same memory";
  });
}

TEST_F(SessionCallsTest, RefusesMemoryThatIsNotSealedOrNotThatLarge) {
  Begin();
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(caller_->RegisterSegment(session_, null.get(), kSize).code, Code::kInvalidArgument);
  EXPECT_EQ(caller_->RegisterSegment(session_, -1, kSize).code, Code::kInvalidArgument);
  const Numbered larger = caller_->RegisterSegment(session_, memory_.fd.get(), 2 * kSize);
  EXPECT_EQ(larger.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(larger.text, "32768");
  EXPECT_EQ(caller_->RegisterSegment(session_, memory_.fd.get(), 5).code, Code::kInvalidArgument);
  EXPECT_EQ(stand_->mapping().Count<service::MapSegment>(), 0U);
  EXPECT_EQ(Register().code, Code::kOk) << "and none of that is held against it";
}

TEST_F(SessionCallsTest, WorksOnOneSegmentAtATime) {
  Begin({.map_segments = false});
  auto first = session_.registerSegmentRequest();
  first.setMemory(Carry(memory_.fd.get()));
  first.setSize(kSize);
  auto pending = first.send();
  const Numbered second = Register();
  EXPECT_EQ(second.code, Code::kBusy);
  EXPECT_VARYING_TEXT(second.text);
}

TEST_F(SessionCallsTest, SaysHowMuchOfASegmentIsMapped) {
  Begin({.map_segments = false});
  const auto ask = [this] {
    return loop_
        .Wait<capnp::Response<schema::Session::RegistrationResults>>(
            session_.registrationRequest().send())
        .getBytes();
  };
  EXPECT_EQ(ask(), 0U);
  auto request = session_.registerSegmentRequest();
  request.setMemory(Carry(memory_.fd.get()));
  request.setSize(kSize);
  auto pending = request.send();
  EXPECT_EQ(ask(), 0U);
  service::RequestToken token = 0;
  ASSERT_TRUE(stand_->mapping().WaitFor<service::MapSegment>(1));
  stand_->mapping().Visit<service::MapSegment>(0, [&token, this](const service::MapSegment& map) {
    token = map.token;
    EXPECT_EQ(map.session, id_);
    EXPECT_EQ(map.uid, ::getuid());
  });
  for (const std::uint64_t bytes : {4096U, 8192U}) {
    ASSERT_TRUE(stand_->rpc().Send(service::SegmentProgress{.token = token, .bytes = bytes}));
    while (ask() < bytes) continue;
    EXPECT_EQ(ask(), bytes);
  }
}

TEST_F(SessionCallsTest, CancelsAMappingWithItsSession) {
  Begin({.map_segments = false});
  auto request = session_.registerSegmentRequest();
  request.setMemory(Carry(memory_.fd.get()));
  request.setSize(kSize);
  auto pending = request.send();
  EXPECT_EQ(caller_->Leave(session_).code, Code::kOk);
  ASSERT_TRUE(stand_->mapping().WaitFor<service::CancelMapping>(1));
  stand_->mapping().Visit<service::CancelMapping>(
      0, [this](const service::CancelMapping& cancel) { EXPECT_EQ(cancel.session, id_); });
}

// It would never be resolved, and the call and its descriptors would stay.
TEST_F(SessionCallsTest, RefusesAPromiseOfADescriptor) {
  Begin();
  auto never = kj::newPromiseAndFulfiller<schema::Descriptor::Client>();
  auto request = session_.registerSegmentRequest();
  request.setMemory(kj::mv(never.promise));
  request.setSize(kSize);
  auto response =
      loop_.Wait<capnp::Response<schema::Session::RegisterSegmentResults>>(request.send());
  EXPECT_EQ(Read(response.getRefusal()).code, Code::kInvalidArgument);
  EXPECT_EQ(Register().code, Code::kOk);
}

TEST_F(SessionCallsTest, ThrowsAMappingAwayThatComesAfterTheEnd) {
  Begin({.map_segments = false});
  auto request = session_.registerSegmentRequest();
  request.setMemory(Carry(memory_.fd.get()));
  request.setSize(kSize);
  auto pending = request.send();
  EXPECT_EQ(caller_->Leave(session_).code, Code::kOk);
  ASSERT_TRUE(stand_->mapping().WaitFor<service::MapSegment>(1));
  service::RequestToken token = 0;
  stand_->mapping().Visit<service::MapSegment>(
      0, [&token](const service::MapSegment& map) { token = map.token; });
  ASSERT_TRUE(stand_->rpc().Send(service::SegmentMapped{
      .token = token, .memory = ToSegmentMemory(Mapping::Map(memory_.fd.get(), kSize, true))}));
  auto response =
      loop_.Wait<capnp::Response<schema::Session::RegisterSegmentResults>>(kj::mv(pending));
  EXPECT_EQ(Read(response.getRefusal()).code, Code::kUnavailable);
  EXPECT_TRUE(stand_->mapping().WaitFor<service::DiscardMemory>(1));
  EXPECT_EQ(stand_->dispatch().Count<service::AddSegment>(), 0U);
}

TEST_F(SessionCallsTest, ReleasesASegmentWhenDispatchAgrees) {
  Begin();
  const std::uint32_t id = Register().number;
  EXPECT_EQ(caller_->ReleaseSegment(session_, id).code, Code::kOk);
  EXPECT_EQ(caller_->ReleaseSegment(session_, id).code, Code::kNotFound);
  EXPECT_EQ(Register().number, id) << "the number is free again";
}

TEST_F(SessionCallsTest, KeepsASegmentThatDispatchStillNeeds) {
  Begin({.remove_answer = Error(Code::kBusy, "3 tensors lie in it")});
  const std::uint32_t id = Register().number;
  const Answered refused = caller_->ReleaseSegment(session_, id);
  EXPECT_EQ(refused.code, Code::kBusy);
  EXPECT_TEXT(refused.text, "3 tensors lie in it");
  EXPECT_EQ(caller_->RegisterTensors(session_, {At(0)}).code, Code::kOk) << "it is still there";
}

TEST_F(SessionCallsTest, RegistersAllTensorsOrNone) {
  Begin();
  ASSERT_EQ(Register().code, Code::kOk);
  const Numbered refused = caller_->RegisterTensors(session_, {At(0), At(kSize)});
  EXPECT_EQ(refused.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(refused.text, "tensor 1");
  EXPECT_EQ(stand_->dispatch().Count<service::AddTensors>(), 0U);
  EXPECT_EQ(caller_->RegisterTensors(session_, {At(0), At(32)}).number, 0U);
  EXPECT_EQ(caller_->RegisterTensors(session_, {At(64)}).number, 2U);
  stand_->dispatch().Visit<service::AddTensors>(0, [this](const service::AddTensors& added) {
    EXPECT_EQ(added.session, id_);
    ASSERT_EQ(added.tensors.size(), 2U);
    EXPECT_EQ(added.tensors[1].offset, 32U);
    EXPECT_EQ(added.tensors[1].name, "w");
  });
}

TEST_F(SessionCallsTest, ReleasesTensors) {
  Begin();
  ASSERT_EQ(Register().code, Code::kOk);
  ASSERT_EQ(caller_->RegisterTensors(session_, {At(0), At(32)}).code, Code::kOk);
  EXPECT_EQ(caller_->ReleaseTensors(session_, 1, 2).code, Code::kNotFound);
  EXPECT_EQ(stand_->dispatch().Count<service::RemoveTensors>(), 0U);
  EXPECT_EQ(caller_->ReleaseTensors(session_, 0, 2).code, Code::kOk);
  EXPECT_EQ(stand_->dispatch().Count<service::RemoveTensors>(), 1U);
}

TEST_F(SessionCallsTest, TakesNothingWhileDispatchIsBehind) {
  Begin();
  ASSERT_EQ(Register().code, Code::kOk);
  ASSERT_EQ(caller_->RegisterTensors(session_, {At(0)}).code, Code::kOk);
  stand_->dispatch().SetFull(true);
  EXPECT_EQ(Register().code, Code::kBusy);
  EXPECT_EQ(caller_->RegisterTensors(session_, {At(32)}).code, Code::kBusy);
  EXPECT_EQ(caller_->ReleaseTensors(session_, 0, 1).code, Code::kBusy);
  EXPECT_EQ(caller_->ReleaseSegment(session_, 0).code, Code::kBusy);
  stand_->dispatch().SetFull(false);
  EXPECT_EQ(caller_->ReleaseTensors(session_, 0, 1).code, Code::kOk);
  EXPECT_EQ(caller_->ReleaseSegment(session_, 0).code, Code::kOk);
}

TEST_F(SessionCallsTest, LeavesInOrderAndMayAttachAgain) {
  Begin();
  EXPECT_EQ(caller_->Leave(session_).code, Code::kOk);
  stand_->dispatch().Visit<service::CloseSession>(0, [this](const service::CloseSession& closed) {
    EXPECT_EQ(closed.session, id_);
    EXPECT_TRUE(closed.orderly);
    EXPECT_TEXT(closed.cause);
  });
  EXPECT_EQ(Register().code, Code::kUnavailable);
  EXPECT_EQ(caller_->Leave(session_).code, Code::kUnavailable);
  EXPECT_EQ(caller_->Attach({}).code, Code::kOk);
}

TEST_F(SessionCallsTest, AnswersWithTheCauseAfterDispatchGaveTheSessionUp) {
  Begin();
  ASSERT_TRUE(stand_->rpc().Send(service::SessionBroken{
      .session = id_, .error = Error(Code::kCorrupt, "its ring holds garbage")}));
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::CloseSession>(1));
  stand_->dispatch().Visit<service::CloseSession>(0, [](const service::CloseSession& closed) {
    EXPECT_FALSE(closed.orderly);
    EXPECT_EQ(closed.cause, "its ring holds garbage");
  });
  const Numbered refused = Register();
  EXPECT_EQ(refused.code, Code::kCorrupt);
  EXPECT_VARYING_TEXT(refused.text);
}

}  // namespace
}  // namespace headrace::support
