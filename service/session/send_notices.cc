#include "service/session/send_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "ipc/base/foreign_text.h"
#include "transport/network.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

constexpr std::size_t kTailMax = std::max(kSendDataMax, kSendCauseMax);
static_assert(sizeof(SendNoticeRecord) + kTailMax <= transport::kNoticeBytesMax);

// Without a character that is cut in two.
std::string_view CutCause(std::string_view cause) {
  if (cause.size() <= kSendCauseMax) return cause;
  std::size_t size = kSendCauseMax;
  while (size > 0 && (static_cast<unsigned char>(cause[size]) & 0xc0) == 0x80) --size;
  return cause.substr(0, size);
}

std::span<const std::byte> TailOf(const SendNotice& notice) {
  const std::string_view cause = notice.code == Code::kOk ? "" : CutCause(notice.cause);
  if (cause.empty()) return notice.data;
  return std::as_bytes(std::span(cause));
}

SendNotice ReadNotice(const SendNoticeRecord& record, std::span<const std::byte> tail) {
  SendNotice notice{
      .kind = static_cast<SendNoticeKind>(record.kind),
      .send = record.send,
      .source = record.source,
      .target = record.target,
      .tag = record.tag,
      .count = record.count,
      .dtype = static_cast<DType>(record.dtype),
      .on_gpu = record.on_gpu != 0,
      .ready = record.ready != 0,
      .blocks = record.blocks,
      .code = record.code < kCodesCount ? static_cast<Code>(record.code) : Code::kInternal};
  if (notice.code == Code::kOk) {
    notice.data.assign(tail.begin(), tail.end());
  } else {
    notice.cause = Printable({reinterpret_cast<const char*>(tail.data()), tail.size()});
  }
  return notice;
}

}  // namespace

std::size_t EncodedSize(const SendNotice& notice) {
  return sizeof(SendNoticeRecord) + TailOf(notice).size();
}

void Encode(const SendNotice& notice, std::vector<std::byte>& bytes) {
  const std::span<const std::byte> tail = TailOf(notice);
  const SendNoticeRecord record{.send = notice.send,
                                .tag = notice.tag,
                                .count = notice.count,
                                .source = notice.source,
                                .target = notice.target,
                                .blocks = notice.blocks,
                                .size = static_cast<std::uint32_t>(tail.size()),
                                .kind = static_cast<std::uint8_t>(notice.kind),
                                .dtype = static_cast<std::uint8_t>(notice.dtype),
                                .on_gpu = notice.on_gpu,
                                .ready = notice.ready,
                                .code = static_cast<std::uint8_t>(notice.code)};
  const std::span<const std::byte> head = std::as_bytes(std::span(&record, 1));
  bytes.insert(bytes.end(), head.begin(), head.end());
  bytes.insert(bytes.end(), tail.begin(), tail.end());
}

Result<std::vector<SendNotice>> DecodeNotices(std::span<const std::byte> bytes) {
  std::vector<SendNotice> notices;
  while (!bytes.empty()) {
    SendNoticeRecord record;
    if (bytes.size() < sizeof(record)) {
      return Error(Code::kCorrupt, fmt::format("{} bytes that are no notice", bytes.size()));
    }
    std::memcpy(&record, bytes.data(), sizeof(record));
    bytes = bytes.subspan(sizeof(record));
    if (record.size > bytes.size() || record.size > kTailMax) {
      return Error(Code::kCorrupt, fmt::format("a notice of a send with {} bytes, of which {} came",
                                               record.size, bytes.size()));
    }
    SendNotice notice = ReadNotice(record, bytes.first(record.size));
    if (Status status = CheckNotice(notice); !status) return status.error();
    notices.push_back(std::move(notice));
    bytes = bytes.subspan(record.size);
  }
  return notices;
}

Status CheckNotice(const SendNotice& notice) {
  const auto wrong = [](std::string what) { return Error(Code::kCorrupt, std::move(what)); };
  if (notice.kind < SendNoticeKind::kAnnounced || notice.kind > SendNoticeKind::kLeft) {
    return wrong(fmt::format("a notice of a send of kind {}", static_cast<unsigned>(notice.kind)));
  }
  if (notice.kind == SendNoticeKind::kLeft) {
    const bool right = notice.source < transport::kMembersMax && notice.code != Code::kOk;
    return right ? Status()
                 : wrong(fmt::format("the end of rank {} without a code", notice.source));
  }
  if (notice.send < kSendNamesBegin || notice.send >= kSendNamesEnd) {
    return wrong(fmt::format("a send of number {}", notice.send));
  }
  if (notice.source >= transport::kMembersMax || notice.target >= transport::kMembersMax ||
      notice.source == notice.target) {
    return wrong(fmt::format("a send from rank {} to rank {}", notice.source, notice.target));
  }
  if (!IsDType(static_cast<std::uint8_t>(notice.dtype))) {
    return wrong(fmt::format("a send of element type {}", static_cast<unsigned>(notice.dtype)));
  }
  if (notice.count > kSendBytesMax / SizeOf(notice.dtype)) {
    return wrong(fmt::format("a send of {} elements", notice.count));
  }
  if (!notice.data.empty() && (notice.kind != SendNoticeKind::kAnnounced || !notice.ready ||
                               notice.on_gpu || notice.data.size() > kSendDataMax ||
                               notice.data.size() != notice.count * SizeOf(notice.dtype))) {
    return wrong(fmt::format("{} bytes with a notice of a send of {} elements", notice.data.size(),
                             notice.count));
  }
  const bool ends =
      notice.kind == SendNoticeKind::kWithdrawn || notice.kind == SendNoticeKind::kRefused;
  if (ends && notice.code == Code::kOk) return wrong("the end of a send without a code");
  return {};
}

}  // namespace headrace::service
