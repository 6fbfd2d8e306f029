// Each peer message about plans comes out of the wire as it went in, and what no honest service
// writes does not.
#include "service/peers/peer_wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "service/config/config_address.h"
#include "service/peers/peer_link.h"
#include "service/session/session.h"
#include "tests/unit/service/peers/wire_trip.h"

namespace headrace::service {
namespace {

std::shared_ptr<const Layout> LayoutOf(std::size_t tensors) {
  Layout layout{.reduction = Reduction::kSum, .tensors = {}};
  for (std::uint64_t i = 0; i < tensors; ++i) {
    layout.tensors.push_back({.name = std::string(255, 'w'),
                              .offset = 16 * i,
                              .count = i % 2 == 0 ? 8U : 4U,
                              .dtype = i % 2 == 0 ? DType::kFloat16 : DType::kFloat32});
  }
  return std::make_shared<const Layout>(std::move(layout));
}

ReportTimesSeen Times() {
  ReportTimesSeen told{.job = 7, .seen = {}};
  told.seen.times = {
      .iteration = 22, .release_s = {3e-3, 2e-3}, .forward_s = {1e-3, 0}, .iteration_s = 1e-2};
  told.seen.times.iterations = {{.iteration = 21,
                                 .offset_s = 1e-3,
                                 .forward_begin_s = 4e-3,
                                 .release_s = {3e-3F, 2e-3F},
                                 .forward_s = {1e-3F, 0}}};
  told.seen.times.contention = 0.25;
  told.seen.costs = {{.startup_s = 1e-5, .s_per_byte = 1e-9}, {.startup_s = 2e-5, .s_per_byte = 0}};
  told.seen.codecs = {{.codec = {Codec::kTopK, 3},
                       .share = 0.25,
                       .encode_s_per_byte = 1e-9,
                       .decode_s_per_byte = 0}};
  told.seen.rails_changed = true;
  return told;
}

TEST(PlanWire, LayoutsPassWithAndWithoutAPolicy) {
  const ReportLayout sent{.job = 7, .layout = LayoutOf(kLayoutTensorsMax), .policy = std::nullopt};
  ReportLayout got = Passed(sent);
  EXPECT_EQ(got.job, 7U);
  EXPECT_EQ(*got.layout, *sent.layout);
  EXPECT_FALSE(got.policy.has_value());
  Layout named = *LayoutOf(2);
  named.names_hash = UINT64_MAX;
  named.tensors[0].codec = {Codec::kTopK, 3};
  named.tensors[0].keeps_codec = true;
  named.tensors[1].rows = named.tensors[1].count;
  named.tensors[1].allowed = ChoiceNamed("auto:int8,topk:4")->allowed;
  named.compress_after = 500;
  named.iterations_before = 56;
  got =
      Passed(ReportLayout{.job = 7, .layout = std::make_shared<const Layout>(named), .policy = {}});
  EXPECT_EQ(got.layout->names_hash, UINT64_MAX);
  EXPECT_EQ(*got.layout, named);
  got = Passed(ReportLayout{.job = 7, .layout = LayoutOf(1), .policy = plan::Policy::kUsByte});
  EXPECT_EQ(got.policy, plan::Policy::kUsByte);
}

TEST(PeerWire, AnEpochToGoOnAfterPassesUnlessNobodyCanHaveSeenIt) {
  const ReportRankAttached sent{.job = 7, .rank = 1, .pid = 3, .after_epoch = 5};
  EXPECT_EQ(Passed(sent).after_epoch, 5U);
  ExpectRefused(
      Pass(sent, [](auto root) { root.getReportRankAttached().setAfterEpoch(kEpochMax); }),
      {"2147483648"});
}

TEST(PeerWire, ReadsAddressesOfRailsAndRefusesNames) {
  NodeFacts facts{.name = "a", .rail_addresses = {"10.1.0.2:7733", "[2001:db8::2]:7733"}};
  const auto trip = [&facts] {
    capnp::MallocMessageBuilder builder;
    WriteHello(builder.initRoot<schema::PeerHello>(), facts);
    return ReadHello(builder.getRoot<schema::PeerHello>().asReader());
  };
  const Result<NodeFacts> read = trip();
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->rail_addresses, facts.rail_addresses);
  for (const char* wrong : {"elsewhere.example:7733", "10.1.0.2:0", "*:7733", ""}) {
    facts.rail_addresses = {wrong};
    const Result<NodeFacts> refused = trip();
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().code(), Code::kCorrupt) << wrong;
  }
  facts.rail_addresses = std::vector<std::string>(kRailsConfiguredMax + 1, "10.1.0.2:7733");
  EXPECT_FALSE(trip().ok());
}

TEST(PeerWire, WhatIsVerifiedPasses) {
  for (const bool planned : {false, true}) {
    const BlockHash sent{{.planned = planned, .number = UINT64_MAX, .block = 9}, UINT64_MAX - 1};
    const ReportBlockHashed got = Passed(ReportBlockHashed{.job = 7, .hash = sent});
    EXPECT_EQ(got.job, 7U);
    EXPECT_EQ(got.hash.name, sent.name);
    EXPECT_EQ(got.hash.hash, sent.hash);
  }
  const OpenJob open{.job = 7, .agreement = {.job = "train", .verify = 25}};
  EXPECT_EQ(Passed(open).agreement.verify, 25U);
}

TEST(PlanWire, TimesPass) {
  const ReportTimesSeen sent = Times();
  const ReportTimesSeen got = Passed(sent);
  EXPECT_EQ(got.job, 7U);
  EXPECT_EQ(got.seen.times.iteration, 22U);
  EXPECT_EQ(got.seen.times.release_s, sent.seen.times.release_s);
  EXPECT_EQ(got.seen.times.forward_s, sent.seen.times.forward_s);
  EXPECT_EQ(got.seen.times.iteration_s, 1e-2);
  EXPECT_TRUE(got.seen.rails_changed);
  EXPECT_EQ(got.seen.costs, sent.seen.costs);
  EXPECT_EQ(got.seen.times.iterations, sent.seen.times.iterations);
  EXPECT_EQ(got.seen.times.contention, 0.25);
}

TEST(PlanWire, RequestsAndAnswersPass) {
  EXPECT_EQ(Passed(RequestPolicy{.job = 7, .policy = plan::Policy::kBsp}).policy,
            plan::Policy::kBsp);
  const ReportPlanAck held =
      Passed(ReportPlanAck{.job = 7, .version = 3, .hash = UINT64_MAX, .iteration = 41});
  EXPECT_EQ(held.job, 7U);
  EXPECT_EQ(held.version, 3U);
  EXPECT_EQ(held.hash, UINT64_MAX);
  EXPECT_EQ(held.iteration, 41U);
}

TEST(PlanWire, PiecesAndSwitchesPass) {
  const PlanPiece piece =
      Passed(PlanPiece{.job = 7,
                       .version = 3,
                       .index = 2,
                       .last = true,
                       .text = std::make_shared<const std::string>(kPlanPieceMax, '\n')});
  EXPECT_EQ(piece.job, 7U);
  EXPECT_EQ(piece.version, 3U);
  EXPECT_EQ(piece.index, 2U);
  EXPECT_TRUE(piece.last);
  EXPECT_EQ(*piece.text, std::string(kPlanPieceMax, '\n'));
  EXPECT_FALSE(Passed(PlanPiece{.job = 7, .text = piece.text}).last);
  const AnnouncePlanSwitch change = Passed(AnnouncePlanSwitch{
      .job = 7, .version = 3, .from_iteration = 49, .before_s = 0.5, .iterations_before = 56});
  EXPECT_EQ(change.version, 3U);
  EXPECT_EQ(change.from_iteration, 49U);
  EXPECT_EQ(change.before_s, 0.5);
  EXPECT_EQ(change.iterations_before, 56U);
}

TEST(PlanWire, IterationsGoWithARankThatLeaves) {
  const ReportRankLeft end =
      Passed(ReportRankLeft{.job = 7, .rank = 1, .posted = 42, .iterations = 6});
  EXPECT_EQ(end.posted, 42U);
  EXPECT_EQ(end.iterations, 6U);
  const AnnounceRankLeft gone =
      Passed(AnnounceRankLeft{.job = 7, .rank = 1, .posted = 42, .iterations = 6, .cause = "left"});
  EXPECT_EQ(gone.posted, 42U);
  EXPECT_EQ(gone.iterations, 6U);
  EXPECT_EQ(gone.cause, "left");
}

TEST(PlanWire, RefusesLayoutsThatAreNone) {
  const ReportLayout honest{.job = 7, .layout = LayoutOf(2), .policy = std::nullopt};
  using Builder = schema::PeerMessage::Builder;
  const auto first = [](Builder root) {
    return root.getReportLayout().getLayout().getTensors()[0];
  };
  ExpectRefused(Pass(honest, [&](Builder root) { first(root).setCodec(99); }),
                {"codec 99 with parameter 0"});
  ExpectRefused(Pass(honest, [&](Builder root) { first(root).setCodecParameter(9); }),
                {"codec 0 with parameter 9"});
  ExpectRefused(Pass(honest, [&](Builder root) { first(root).setAllowed(99); }), {"codecs 0x63"});
  ExpectRefused(Pass(honest, [&](Builder root) { first(root).setRows(99); }), {"in 99 rows"});
  ExpectRefused(Pass(honest, [](Builder root) { root.getReportLayout().setPolicy(99); }),
                {"policy 99"});
  ExpectRefused(Pass(honest,
                     [](Builder root) {
                       root.getReportLayout().getLayout().initTensors(kLayoutTensorsMax + 1);
                     }),
                {"769"});
  ExpectRefused(Pass(honest, [](Builder root) {
    root.getReportLayout().getLayout().getTensors()[1].setOffset(8);
  }));
  ExpectRefused(
      Pass(honest,
           [](Builder root) { root.getReportLayout().getLayout().getTensors()[1].setDtype(99); }),
      {"dtype 99"});
}

TEST(PlanWire, NamesOfTensorsAreFitForALogLine) {
  const ReportLayout sent{.job = 7, .layout = LayoutOf(1), .policy = std::nullopt};
  const auto passed = Pass(sent, [](schema::PeerMessage::Builder root) {
    root.getReportLayout().getLayout().getTensors()[0].setName("a\nb" + std::string(300, 'x'));
  });
  ASSERT_TRUE(passed.ok()) << passed.error().text();
  const std::string& name = std::get<ReportLayout>(*passed).layout->tensors[0].name;
  EXPECT_EQ(name, "a?b" + std::string(252, 'x'));
}

TEST(PlanWire, RefusesTimesThatAreNone) {
  const std::function<void(ReportTimesSeen&)> spoils[] = {
      [](ReportTimesSeen& told) { told.seen.times.release_s[1] = -1; },
      [](ReportTimesSeen& told) { told.seen.times.forward_s[0] = NAN; },
      [](ReportTimesSeen& told) { told.seen.times.iteration_s = INFINITY; },
      [](ReportTimesSeen& told) { told.seen.times.release_s.resize(kLayoutTensorsMax + 1); },
      [](ReportTimesSeen& told) { told.seen.costs[0].startup_s = -1e-9; },
      [](ReportTimesSeen& told) { told.seen.times.contention = 1; },
      [](ReportTimesSeen& told) { told.seen.times.contention = NAN; },
      [](ReportTimesSeen& told) { told.seen.times.iterations[0].offset_s = -1; },
      [](ReportTimesSeen& told) { told.seen.times.iterations[0].release_s[0] = NAN; },
      [](ReportTimesSeen& told) { told.seen.times.iterations[0].forward_s[1] = -1; },
      [](ReportTimesSeen& told) {
        told.seen.times.iterations[0].release_s.resize(kLayoutTensorsMax + 1);
      },
      [](ReportTimesSeen& told) { told.seen.times.iterations.resize(plan::kRecordedMax + 1); },
      [](ReportTimesSeen& told) { told.seen.codecs[0].share = 2; },
      [](ReportTimesSeen& told) { told.seen.codecs[0].decode_s_per_byte = NAN; },
      [](ReportTimesSeen& told) {
        told.seen.codecs.resize(kCodecCostsMax + 1, told.seen.codecs[0]);
      },
      [](ReportTimesSeen& told) { told.seen.costs.resize(kLanesMax + 2); }};
  for (const auto& spoil : spoils) {
    ReportTimesSeen told = Times();
    spoil(told);
    ExpectRefused(Pass(told));
  }
  ExpectRefused(
      Pass(AnnouncePlanSwitch{.job = 7, .version = 1, .from_iteration = 1, .before_s = -1}));
  ExpectRefused(Pass(AnnouncePlanSwitch{.job = 7,
                                        .version = 1,
                                        .from_iteration = 1,
                                        .iterations_before = kIterationsBeforeMax + 1}),
                {"281474976710657"});
}

TEST(PlanWire, RefusesNumbersBeyondTheirLimits) {
  ExpectRefused(Pass(RequestPolicy{.job = 7, .policy = plan::Policy{0}}));
  ExpectRefused(Pass(RequestPolicy{.job = 7, .policy = plan::Policy{99}}), {"policy 99"});
  ExpectRefused(Pass(ReportPlanAck{.job = 7, .version = 1, .hash = 1, .iteration = UINT64_MAX}));
  ExpectRefused(Pass(PlanPiece{
                    .job = 7, .text = std::make_shared<const std::string>(kPlanPieceMax + 1, 'x')}),
                {"131073 bytes"});
}

TEST(PlanWire, OneCallLeavesRoomForAnswers) {
  const ReportLayout longest{
      .job = 7, .layout = LayoutOf(kLayoutTensorsMax), .policy = std::nullopt};
  EXPECT_LT(WireBytes(longest), kBytesPerCallMax);
  EXPECT_LT(2 * kBytesPerCallMax, kUnreadBytesMax);
  EXPECT_LT(2 * kBytesPerCallMax, kPeerMessageWordsMax * 8);
}

}  // namespace
}  // namespace headrace::service
