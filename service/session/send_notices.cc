#include "service/session/send_notices.h"

#include <fmt/format.h>

#include "transport/transport.h"

namespace headrace::service {

Status CheckNotice(const SendNotice& notice) {
  const auto wrong = [](std::string what) { return Error(Code::kCorrupt, std::move(what)); };
  if (notice.kind < SendNoticeKind::kAnnounced || notice.kind > SendNoticeKind::kRefused) {
    return wrong(fmt::format("a notice of a send of kind {}", static_cast<unsigned>(notice.kind)));
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
  const bool ends =
      notice.kind == SendNoticeKind::kWithdrawn || notice.kind == SendNoticeKind::kRefused;
  if (ends && notice.code == Code::kOk) return wrong("the end of a send without a code");
  return {};
}

}  // namespace headrace::service
