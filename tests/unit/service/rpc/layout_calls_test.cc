// Handing a layout in, over a real socket: what is refused, each with its sentence.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {
namespace {

constexpr std::uint64_t kLayoutSegmentSize = 4 * ipc::kPageSize;

class LayoutCallsTest : public testing::Test {
 protected:
  LayoutCallsTest() : rank_(Attach(0)), other_(Attach(1)) {}
  // The event loop's destructors may throw, a test's may not.
  ~LayoutCallsTest() noexcept override {}

  struct Rank {
    std::unique_ptr<Caller> caller;
    schema::Session::Client session = nullptr;
    SessionId id;
    ipc::SealedMemory memory;
  };

  // With two segments of kLayoutSegmentSize.
  Rank Attach(std::uint32_t number) {
    Rank rank{.caller = std::make_unique<Caller>(loop_, stand_.socket_path()),
              .session = nullptr,
              .id = {},
              .memory = ipc::CreateSealedMemory("segment", kLayoutSegmentSize).value()};
    Attached attached = rank.caller->Attach({.rank = number});
    EXPECT_EQ(attached.code, Code::kOk) << attached.text;
    rank.session = kj::mv(attached.session);
    rank.id = SessionId{attached.session_id};
    for (int segment = 0; segment < 2; ++segment) {
      EXPECT_EQ(
          rank.caller->RegisterSegment(rank.session, rank.memory.fd.get(), kLayoutSegmentSize).code,
          Code::kOk);
    }
    return rank;
  }
  static service::Tensor At(std::uint64_t offset, std::uint64_t count = 8,
                            const std::string& name = {}) {
    return {.name = name.empty() ? "w" + std::to_string(offset) : name,
            .segment = {},
            .offset = offset,
            .count = count,
            .dtype = DType::kFloat32};
  }
  void Register(Rank& rank, const std::vector<service::Tensor>& tensors) {
    const Numbered answer = rank.caller->RegisterTensors(rank.session, tensors);
    ASSERT_EQ(answer.code, Code::kOk) << answer.text;
  }
  Answered Set(Rank& rank, const LayoutCall& fields) {
    return rank.caller->SetLayout(rank.session, fields);
  }
  void ExpectRefused(Rank& rank, const LayoutCall& fields, Code code,
                     std::initializer_list<std::string_view> values = {}) {
    const std::size_t before = stand_.dispatch().Count<service::SetLayout>();
    const Answered answer = Set(rank, fields);
    EXPECT_EQ(answer.code, code) << answer.text;
    ExpectText(__FILE__, __LINE__, answer.text, values);
    EXPECT_EQ(stand_.dispatch().Count<service::SetLayout>(), before);
  }

  CallerLoop loop_;
  ControlStand stand_;
  Rank rank_;
  Rank other_;
};

TEST_F(LayoutCallsTest, DispatchGetsTheLayoutInForwardOrderFromItsLowestTensorOn) {
  Register(rank_, {At(4000), At(256, 16), At(128)});
  const Answered answer = Set(rank_, {.first = 1,
                                      .count = 2,
                                      .reduction = Reduction::kSum,
                                      .codec = "int8",
                                      .codecs = {"", "bf16"},
                                      .residuals = 1024,
                                      .factors_rank = 2,
                                      .rows = {4, 0}});
  ASSERT_EQ(answer.code, Code::kOk) << answer.text;
  stand_.dispatch().Visit<service::SetLayout>(0, [this](const service::SetLayout& set) {
    EXPECT_EQ(set.session, rank_.id);
    EXPECT_EQ(set.first.value, 1U);
    ASSERT_NE(set.layout, nullptr);
    EXPECT_EQ(set.layout->reduction, Reduction::kSum);
    const std::vector<service::LayoutTensor> expected = {
        {.name = "w256", .offset = 128, .count = 16, .rows = 4, .keeps_codec = true},
        {.name = "w128", .offset = 0, .count = 8, .codec = Codec::kBFloat16, .keeps_codec = true}};
    EXPECT_EQ(set.layout->tensors, expected)
        << "small ones cross as they are unless they are named";
    EXPECT_EQ(set.residuals.offset, 1024U);
    EXPECT_EQ(set.residuals.factors_rank, 2U);
    EXPECT_FALSE(set.residuals.segment.has_value());
  });
}

TEST_F(LayoutCallsTest, RefusesRowsThatTensorsDoNotHave) {
  Register(rank_, {At(256, 16), At(128)});
  ExpectRefused(rank_, {.count = 2, .rows = {5, 0}}, Code::kInvalidArgument, {"w256", "16", "5"});
  ExpectRefused(rank_, {.count = 2, .rows = {4}}, Code::kInvalidArgument, {"1 of 2 tensors"});
}

TEST_F(LayoutCallsTest, SaysHowManyIterationsTheJobHasHad) {
  Register(rank_, {At(0)});
  Register(other_, {At(0)});
  ExpectRefused(rank_, {.first = 0, .count = 1, .iterations_before = UINT64_MAX},
                Code::kInvalidArgument, {"18446744073709551615", "281474976710656"});
  ASSERT_EQ(Set(rank_, {.first = 0, .count = 1, .iterations_before = 56}).code, Code::kOk);
  ASSERT_EQ(Set(other_, {.first = 0, .count = 1, .iterations_before = 57}).code, Code::kOk)
      << "it was told of one more";
  stand_.dispatch().Visit<service::SetLayout>(
      0, [](const service::SetLayout& set) { EXPECT_EQ(set.layout->iterations_before, 56U); });
}

// Adam divides by what gradients were, which these codecs leave out for long.
TEST_F(LayoutCallsTest, AdaptiveOptimizersKeepPeopleFromCodecsWithWhichTheyDiverge) {
  Register(rank_, {At(0)});
  Register(other_, {At(0)});
  const auto ask = [this](const char* codec, bool forced = false) {
    return Caller(loop_, stand_.socket_path())
        .Steer("train", SteeringKind::kCompress, ChoiceValue(*ChoiceNamed(codec)), forced);
  };
  EXPECT_EQ(ask("sign").code, Code::kOk) << "nobody has said what optimizer it is";
  ASSERT_EQ(Set(rank_, {.first = 0, .count = 1, .adaptive = true}).code, Code::kOk);
  ASSERT_EQ(Set(other_, {.first = 0, .count = 1}).code, Code::kOk);
  for (const char* codec : {"sign", "topk:16", "randomk", "auto:int8,topk"}) {
    const Answered answer = ask(codec);
    EXPECT_EQ(answer.code, Code::kInvalidArgument) << codec;
    EXPECT_TEXT(answer.text, codec, "train", "Adam", "--force");
    EXPECT_EQ(ask(codec, true).code, Code::kOk) << codec;
  }
  EXPECT_EQ(ask("int8").code, Code::kOk);
  EXPECT_EQ(ask("auto:int8,bf16").code, Code::kOk);
}

TEST_F(LayoutCallsTest, TakesTensorsOfSeveralTypes) {
  service::Tensor half = At(32);
  half.dtype = DType::kBFloat16;
  Register(rank_, {At(0), half});
  const Answered answer = Set(rank_, {.first = 0, .count = 2});
  ASSERT_EQ(answer.code, Code::kOk) << answer.text;
  stand_.dispatch().Visit<service::SetLayout>(0, [](const service::SetLayout& set) {
    EXPECT_EQ(set.layout->tensors[0].dtype, DType::kFloat32);
    EXPECT_EQ(set.layout->tensors[1].dtype, DType::kBFloat16);
    EXPECT_EQ(set.layout->tensors[1].Bytes(), 16U);
  });
}

TEST_F(LayoutCallsTest, RefusesTensorsThatAreNotThere) {
  Register(rank_, {At(0), At(32), At(64)});
  ExpectRefused(rank_, {.first = 0, .count = 0}, Code::kInvalidArgument, {"768"});
  ExpectRefused(rank_, {.first = 0, .count = 769}, Code::kInvalidArgument, {"769"});
  ExpectRefused(rank_, {.first = 1, .count = 3}, Code::kNotFound, {"tensor 3"});
  ExpectRefused(rank_, {.first = UINT32_MAX, .count = 2}, Code::kNotFound, {"tensor 4294967295"});
  ASSERT_EQ(rank_.caller->ReleaseTensors(rank_.session, 1, 1).code, Code::kOk);
  ExpectRefused(rank_, {.first = 0, .count = 3}, Code::kNotFound, {"tensor 1"});
}

TEST_F(LayoutCallsTest, RefusesTensorsThatAreNoGradientsOfOneModel) {
  service::Tensor elsewhere = At(64);
  elsewhere.segment = SegmentId{1};
  Register(rank_, {At(0), elsewhere, At(32), At(160), At(96, 9), At(128)});
  ExpectRefused(rank_, {.first = 0, .count = 2}, Code::kInvalidArgument, {"tensor 1", "tensor 0"});
  ExpectRefused(rank_, {.first = 4, .count = 2}, Code::kInvalidArgument, {"tensor 1", "tensor 0"});
  ExpectRefused(rank_, {.first = 0, .count = 1, .reduction = Reduction::kMax},
                Code::kInvalidArgument);
  ExpectRefused(rank_, {.first = 0, .count = 1, .reduction = Reduction{77}},
                Code::kInvalidArgument);
  ExpectRefused(rank_, {.first = 0, .count = 1, .policy = "exactly"}, Code::kInvalidArgument,
                {"\"exactly\""});
  ExpectRefused(rank_, {.first = 0, .count = 1, .codec = "int2"}, Code::kInvalidArgument,
                {"\"int2\"", "int8"});
  ExpectRefused(rank_, {.first = 0, .count = 1, .codecs = {"int2"}}, Code::kInvalidArgument,
                {"\"int2\"", "int8"});
  ExpectRefused(rank_, {.first = 0, .count = 1, .codecs = {"int8", "int8"}}, Code::kInvalidArgument,
                {"2 codecs for 1 tensors"});
  ExpectRefused(rank_, {.first = 0, .count = 1, .residuals = 16}, Code::kInvalidArgument,
                {"residuals from byte 16"});
}

TEST_F(LayoutCallsTest, ASessionHasOneLayoutForAsLongAsItLasts) {
  Register(rank_, {At(0), At(32), At(64)});
  ASSERT_EQ(Set(rank_, {.first = 0, .count = 2}).code, Code::kOk);
  ExpectRefused(rank_, {.first = 0, .count = 2}, Code::kAlreadyExists);
  const Answered released = rank_.caller->ReleaseTensors(rank_.session, 1, 2);
  EXPECT_EQ(released.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(released.text, "tensor 1");
  EXPECT_EQ(rank_.caller->ReleaseTensors(rank_.session, 2, 1).code, Code::kOk);
}

TEST_F(LayoutCallsTest, RefusesAnotherLayoutOrPolicyThanTheOtherRanks) {
  Register(rank_, {At(0), At(32)});
  Register(other_, {At(0), At(32, 9), At(128, 8, "w0"), At(160, 8, "w32")});
  ASSERT_EQ(Set(rank_, {.first = 0, .count = 2, .policy = "bsp"}).code, Code::kOk);
  ExpectRefused(other_, {.first = 0, .count = 2}, Code::kMismatch,
                {"rank 0", "rank 1", "tensor 1"});
  ExpectRefused(other_, {.first = 2, .count = 2, .policy = "exact"}, Code::kMismatch,
                {"rank 0", "rank 1"});
  ExpectRefused(other_, {.first = 2, .count = 2, .codecs = {"", "int8"}}, Code::kMismatch,
                {"rank 0", "rank 1", "w32", "int8"});
  ASSERT_EQ(stand_.dispatch().Count<service::JobFailed>(), 1U) << "gradients can never move";
  stand_.dispatch().Visit<service::JobFailed>(0, [](const service::JobFailed& failed) {
    EXPECT_EQ(failed.code, Code::kMismatch);
    EXPECT_VARYING_TEXT(failed.cause, "tensor 1");
  });
}

TEST_F(LayoutCallsTest, PlacesAreCountedFromTheLowestTensor) {
  Register(rank_, {At(0), At(32)});
  Register(other_, {At(0), At(128, 8, "w0"), At(160, 8, "w32")});
  ASSERT_EQ(Set(rank_, {.first = 0, .count = 2}).code, Code::kOk);
  EXPECT_EQ(Set(other_, {.first = 1, .count = 2}).code, Code::kOk);
  EXPECT_EQ(stand_.dispatch().Count<service::JobFailed>(), 0U);
}

TEST_F(LayoutCallsTest, SaysWhenDispatchIsBehindAndTakesItLater) {
  Register(rank_, {At(0)});
  stand_.dispatch().SetFull(true);
  ExpectRefused(rank_, {.first = 0, .count = 1}, Code::kBusy);
  stand_.dispatch().SetFull(false);
  EXPECT_EQ(Set(rank_, {.first = 0, .count = 1}).code, Code::kOk);
}

TEST_F(LayoutCallsTest, ASessionThatHasLeftHandsNothingIn) {
  Register(rank_, {At(0)});
  ASSERT_EQ(rank_.caller->Leave(rank_.session).code, Code::kOk);
  ExpectRefused(rank_, {.first = 0, .count = 1}, Code::kUnavailable);
}

}  // namespace
}  // namespace headrace::support
