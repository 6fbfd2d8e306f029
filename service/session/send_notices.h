// What the nodes of one job send each other about sends between their ranks: plain values, from the
// dispatch of one node to that of another.
//
// The receiver's node matches. A send is announced to it; when a receive has taken it, and each of
// its blocks stands on the lanes there, the sender's node gets the notice that it may go. What ends
// a send or its receive early is reported to the other side, once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"

namespace headrace::service {

// In one message.
inline constexpr std::size_t kSendNoticesMax = 128;
// Of SendNotice::send: it and a block's number are a position (transport/network.h), and no
// operation of a job has such a number, whose messages are received between the same nodes.
inline constexpr std::uint64_t kSendNamesBegin = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kSendNamesEnd = std::uint64_t{1} << 47;

// Of a send, at most.
inline constexpr std::uint64_t kSendBytesMax = std::uint64_t{1} << 40;

enum class SendNoticeKind : std::uint8_t {
  kAnnounced = 1,  // from the sender's node: it has been posted
  kReady = 2,      // from the sender's node: its memory is, which it was not when it was announced
  kMayGo = 3,      // from the receiver's node: blocks below `blocks` are waited for
  kWithdrawn = 4,  // from the sender's node: it has ended early
  kRefused = 5,    // from the receiver's node: it was not matched, or its receive has ended early
};

struct SendNotice {
  SendNoticeKind kind = SendNoticeKind::kAnnounced;
  std::uint64_t send = 0;  // what the sender's node calls it; used once in the job's life
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  // Of kAnnounced.
  std::uint64_t tag = 0;
  std::uint64_t count = 0;
  DType dtype = DType::kUInt8;
  bool on_gpu = false;
  bool ready = true;
  // Of kMayGo.
  std::uint32_t blocks = 0;
  // Of kWithdrawn and kRefused; also of a kAnnounced that had ended before it was announced.
  Code code = Code::kOk;
  std::string cause{};

  bool FromSender() const {
    return kind == SendNoticeKind::kAnnounced || kind == SendNoticeKind::kReady ||
           kind == SendNoticeKind::kWithdrawn;
  }
  friend bool operator==(const SendNotice&, const SendNotice&) = default;
};

// Whether it is one, as far as that can be seen without knowing the job: it comes from another
// service. kCorrupt, with what is wrong.
Status CheckNotice(const SendNotice& notice);

// In the order in which they were sent.
struct SendNotices {
  JobId job;
  std::uint32_t node = 0;  // place in JobNodes::nodes: to whom, or on arrival from whom
  std::vector<SendNotice> notices;
};

}  // namespace headrace::service
