// What nodes tell each other of sends, as it goes over the network.
#include "service/session/send_notices.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace headrace::service {
namespace {

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

SendNotice WithData(std::size_t bytes) {
  SendNotice notice = Announced();
  notice.count = bytes / 2;
  notice.on_gpu = false;
  notice.ready = true;
  notice.data.assign(bytes, std::byte{7});
  return notice;
}

std::vector<std::byte> Encoded(const SendNotice& notice) {
  std::vector<std::byte> bytes;
  Encode(notice, bytes);
  EXPECT_EQ(bytes.size(), EncodedSize(notice));
  return bytes;
}

TEST(SendNotices, EveryKindPassesUnchanged) {
  std::vector<SendNotice> sent{Announced(), WithData(kSendDataMax)};
  for (const SendNoticeKind kind :
       {SendNoticeKind::kReady, SendNoticeKind::kMayGo, SendNoticeKind::kWithdrawn,
        SendNoticeKind::kRefused, SendNoticeKind::kReceived}) {
    sent.push_back({.kind = kind,
                    .send = kSendNamesBegin,
                    .source = 1,
                    .target = 2,
                    .blocks = 65536,
                    .code = Code::kTimeout,
                    .cause = "rank 2 on node b has not posted its receive"});
  }
  sent.push_back({.kind = SendNoticeKind::kLeft,
                  .source = 5,
                  .code = Code::kPeerLost,
                  .cause = "rank 5 left the job"});
  std::vector<std::byte> bytes;
  for (const SendNotice& notice : sent) {
    const std::vector<std::byte> next = Encoded(notice);
    bytes.insert(bytes.end(), next.begin(), next.end());
  }
  const auto read = DecodeNotices(bytes);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(*read, sent);
}

TEST(SendNotices, ALongCauseIsCutBetweenTwoCharacters) {
  SendNotice refused = Announced();
  refused.kind = SendNoticeKind::kRefused;
  refused.code = Code::kTimeout;
  refused.cause = std::string(kSendCauseMax - 1, 'x') + "\xc3\xa9 and more";
  const auto read = DecodeNotices(Encoded(refused));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->at(0).cause, std::string(kSendCauseMax - 1, 'x'));
}

TEST(SendNotices, ThatAreNoneAreRefused) {
  const auto wrong = [](const SendNotice& honest, auto change) {
    std::vector<std::byte> bytes = Encoded(honest);
    SendNoticeRecord record;
    std::memcpy(&record, bytes.data(), sizeof(record));
    change(record);
    std::memcpy(bytes.data(), &record, sizeof(record));
    const auto read = DecodeNotices(bytes);
    return !read.ok() && read.error().code() == Code::kCorrupt;
  };
  EXPECT_FALSE(wrong(Announced(), [](auto&) {}));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.kind = 0; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.kind = 8; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.send = 0; }));
  // An operation's number.
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.send = kSendNamesBegin - 1; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.send = kSendNamesEnd; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.source = 64; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.target = 3; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.dtype = 9; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.count = UINT64_MAX; }));
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.kind = 4; })) << "without a code";
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.kind = 7; })) << "without a code";
  EXPECT_TRUE(wrong(Announced(), [](auto& record) { record.size = 1; })) << "that did not come";
  EXPECT_FALSE(wrong(WithData(64), [](auto&) {}));
  EXPECT_TRUE(wrong(WithData(64), [](auto& record) { record.size = 63; }));
  EXPECT_TRUE(wrong(WithData(64), [](auto& record) { record.count = 31; }));
  EXPECT_TRUE(wrong(WithData(64), [](auto& record) { record.ready = 0; }));
  EXPECT_TRUE(wrong(WithData(64), [](auto& record) { record.on_gpu = 1; }));
  EXPECT_TRUE(wrong(WithData(64), [](auto& record) { record.kind = 2; }));
  EXPECT_TRUE(wrong(WithData(kSendDataMax + 2), [](auto&) {}));
  std::vector<std::byte> cut = Encoded(Announced());
  cut.pop_back();
  EXPECT_FALSE(DecodeNotices(cut).ok());
}

}  // namespace
}  // namespace headrace::service
