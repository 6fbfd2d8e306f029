// Notices between the nodes of a job about sends between their ranks: plain values, from the
// dispatch of one node to that of another.
//
// The receiver's node matches. A send is announced to it; when a receive has taken it, and each of
// its blocks stands on the lanes there, the sender's node gets the notice that it may go. A short
// message travels with its announcement, which ends its send; the sender's node gets the notice
// that it was received. The early end of a send or its receive is reported to the other side, once.
//
// They go over the job's links from lane to lane (transport/network.h), in the order in which they
// were sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"

namespace headrace::service {

// In one message from dispatch to a lane.
inline constexpr std::size_t kSendNoticesMax = 128;
// The least SendNotice::send: it and a block's number are a position (transport/network.h), and no
// operation of a job has such a number, whose messages are received between the same nodes.
inline constexpr std::uint64_t kSendNamesBegin = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kSendNamesEnd = std::uint64_t{1} << 47;

// The bytes of a send, at most.
inline constexpr std::uint64_t kSendBytesMax = std::uint64_t{1} << 40;
// The bytes of a message that travels with its announcement, at most; and of all from one node to
// another, of one job, that were not received.
inline constexpr std::size_t kSendDataMax = std::size_t{64} << 10;
inline constexpr std::size_t kSendDataOpenMax = std::size_t{1} << 20;
// The bytes of a cause on its way.
inline constexpr std::size_t kSendCauseMax = std::size_t{4} << 10;

enum class SendNoticeKind : std::uint8_t {
  kAnnounced = 1,  // from the sender's node: it has been posted
  kReady = 2,      // from the sender's node: its memory is, which it was not when it was announced
  kMayGo = 3,      // from the receiver's node: blocks below `blocks` are waited for
  kWithdrawn = 4,  // from the sender's node: it has ended early
  kRefused = 5,    // from the receiver's node: it was not matched, or its receive has ended early
  kReceived = 6,   // from the receiver's node: what was announced with it is where it belongs
  kLeft = 7,       // rank `source` has left the job: it sends and receives nothing more
};

struct SendNotice {
  SendNoticeKind kind = SendNoticeKind::kAnnounced;
  std::uint64_t send = 0;  // what the sender's node calls it; used once in the job's life
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  // Fields of kAnnounced.
  std::uint64_t tag = 0;
  std::uint64_t count = 0;
  DType dtype = DType::kUInt8;
  bool on_gpu = false;
  bool ready = true;
  // Field of kMayGo.
  std::uint32_t blocks = 0;
  // Fields of kWithdrawn, kRefused and kLeft; also of a kAnnounced that had already ended.
  Code code = Code::kOk;
  std::string cause{};
  // The whole message of a kAnnounced; or nothing, and it is received later.
  std::vector<std::byte> data{};

  bool FromSender() const {
    return kind == SendNoticeKind::kAnnounced || kind == SendNoticeKind::kReady ||
           kind == SendNoticeKind::kWithdrawn || kind == SendNoticeKind::kLeft;
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
  // On arrival: none will come any more, or those that came make no sense.
  std::optional<Error> failure{};
};

// A notice as it travels; what follows it is its data or, with a code, its cause. PEERS.md.
struct SendNoticeRecord {
  std::uint64_t send = 0;
  std::uint64_t tag = 0;
  std::uint64_t count = 0;
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  std::uint32_t blocks = 0;
  std::uint32_t size = 0;  // bytes that follow, before the next record
  std::uint8_t kind = 0;   // SendNoticeKind
  std::uint8_t dtype = 0;
  std::uint8_t on_gpu = 0;
  std::uint8_t ready = 0;
  std::uint8_t code = 0;
  std::array<std::uint8_t, 3> zero{};
};
static_assert(sizeof(SendNoticeRecord) == 48 && std::is_trivially_copyable_v<SendNoticeRecord>);

// The bytes of a notice; a longer cause is cut.
std::size_t EncodedSize(const SendNotice& notice);
// Appends them.
void Encode(const SendNotice& notice, std::vector<std::byte>& bytes);
// Those of one message. kCorrupt, with what is wrong: it comes from another service.
Result<std::vector<SendNotice>> DecodeNotices(std::span<const std::byte> bytes);

}  // namespace headrace::service
