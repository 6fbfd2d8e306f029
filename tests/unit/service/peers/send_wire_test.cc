// What nodes tell each other of sends, as it goes over the network.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "service/session/send_notices.h"
#include "tests/unit/service/peers/wire_trip.h"

namespace headrace::service {
namespace {

using Builder = schema::PeerMessage::Builder;

SendNotice Announced() {
  return {.kind = SendNoticeKind::kAnnounced,
          .send = kSendNamesEnd - 1,
          .source = 3,
          .target = 63,
          .tag = UINT64_MAX,
          .count = 1000,
          .dtype = DType::kBFloat16,
          .on_gpu = true,
          .ready = false};
}

TEST(SendWire, EveryKindOfNoticePassesUnchanged) {
  std::vector<SendNotice> sent{Announced()};
  for (const SendNoticeKind kind : {SendNoticeKind::kReady, SendNoticeKind::kMayGo,
                                    SendNoticeKind::kWithdrawn, SendNoticeKind::kRefused}) {
    sent.push_back({.kind = kind,
                    .send = kSendNamesBegin,
                    .source = 1,
                    .target = 2,
                    .blocks = 65536,
                    .code = Code::kTimeout,
                    .cause = "rank 2 on node b has not posted its receive"});
  }
  const ReportSends there = Passed(ReportSends{.job = 7, .node = 63, .notices = sent});
  EXPECT_EQ(there.job, 7U);
  EXPECT_EQ(there.node, 63U);
  EXPECT_EQ(there.notices, sent);
  const AnnounceSends here = Passed(AnnounceSends{.job = 7, .node = 0, .notices = sent});
  EXPECT_EQ(here.notices, sent);
}

TEST(SendWire, RefusesNoticesThatAreNone) {
  const ReportSends honest{.job = 7, .node = 1, .notices = {Announced()}};
  const auto with = [&](auto change) {
    return Pass(honest, [&](Builder root) { change(root.getReportSends().getNotices()[0]); });
  };
  ExpectRefused(with([](auto notice) { notice.setKind(0); }), {"kind 0"});
  ExpectRefused(with([](auto notice) { notice.setKind(6); }), {"kind 6"});
  ExpectRefused(with([](auto notice) { notice.setSend(0); }));
  // An operation's number.
  ExpectRefused(with([](auto notice) { notice.setSend(kSendNamesBegin - 1); }));
  ExpectRefused(with([](auto notice) { notice.setSend(kSendNamesEnd); }));
  ExpectRefused(with([](auto notice) { notice.setSource(64); }), {"rank 64"});
  ExpectRefused(with([](auto notice) { notice.setTarget(3); }), {"rank 3"});
  ExpectRefused(with([](auto notice) { notice.setDtype(9); }));
  ExpectRefused(with([](auto notice) { notice.setCount(UINT64_MAX); }));
  ExpectRefused(with([](auto notice) { notice.setKind(4); }));
  ExpectRefused(
      Pass(honest, [](Builder root) { root.getReportSends().initNotices(kSendNoticesMax + 1); }),
      {"129"});
}

}  // namespace
}  // namespace headrace::service
