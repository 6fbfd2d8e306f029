// Another service that says what it likes of sends: a node of a job of two, driven by hand. The
// bytes are a script of posts of its two ranks, notices that passed the check of a single one, data
// of sends over one to three rails, and time; the other node of the job says nothing else. Whatever
// the script is, every post of a rank that stays ends once the job has failed, and when all ranks
// are gone nothing is left.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ipc/base/check.h"
#include "service/session/send_notices.h"
#include "tests/fuzz/script.h"
#include "tests/support/hand_driven_cluster.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own
using fuzz::Script;

constexpr std::uint32_t kRanks = 2;  // of each node

class Trial {
 public:
  static constexpr std::size_t kStepsMax = 1000;

  explicit Trial(Script& script)
      : cluster_({.nodes_count = 2, .rails_count = 1U + script.Read<std::uint8_t>() % 3U}) {
    job_.world_size = 2 * kRanks;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      clients_[rank] = &cluster_.node(0).Attach(job_, rank);
      cluster_.node(1).Attach(job_, kRanks + rank);
    }
    cluster_.Form(job_, {{0, 1}, {2, 3}}, 64);
    cluster_.observed(0).lose = true;  // the script alone answers
    cluster_.Advance(kMillisecond);
  }

  void Step(Script& script) {
    const std::uint8_t action = script.Read<std::uint8_t>();
    if (action < 0x60) {
      Post(action % kRanks, script.Read<std::uint8_t>());
    } else if (action < 0xb8) {
      Deliver(action, script);
    } else if (action < 0xd0) {
      SendData(script);
    } else if (action < 0xe0) {
      cluster_.Advance(script.Read<std::uint8_t>() * kMillisecond);
    } else if (action < 0xe8) {
      Close(action % kRanks, action % 4 < 2);
    } else if (action < 0xf0) {
      SendBytes(script);
    } else {
      TakeNames();
    }
  }

  void Finish() {
    // Those that left in order may wait for the other node until their timeout.
    cluster_.node(0).Send(
        service::JobFailed{job_.id, Code::kPeerLost, "node b: the script is over"});
    cluster_.CloseLinks(0, job_.id, "the script is over");
    cluster_.Advance(kSecond);
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      for (std::uint64_t post = 1; !gone_[rank] && post <= clients_[rank]->posted(); ++post) {
        HR_CHECK(clients_[rank]->HasEnded(post), rank, post);
      }
      Close(rank, false);
    }
    cluster_.Advance(kSecond);
    for (const support::ClientEnd* client : clients_) {
      HR_CHECK(cluster_.node(0).Discarded(*client));
    }
    HR_CHECK(cluster_.node(0).RowsInUse() == 0, cluster_.node(0).RowsInUse());
    HR_CHECK(cluster_.node(0).LaneRow(1).in_flight_stages == 0);
    HR_CHECK(cluster_.node(0).discarded_in_use() == 0);
  }

 private:
  void Post(std::uint32_t rank, std::uint8_t choice) {
    if (gone_[rank] || !clients_[rank]->HasRoom()) return;
    const std::uint64_t tag = choice / 8 % 2;
    const std::uint32_t other = choice % 4 == rank ? ipc::kAnyRank : choice % 4U;
    const bool sends = (choice & 0x80) != 0 && other != ipc::kAnyRank;
    ipc::Record record =
        sends ? support::SendTo(other, 20 * tag, tag) : support::ReceiveFrom(other, 20 * tag, tag);
    record.offset = choice % 64 * 80U + (sends ? 0U : 8192U);
    record.timeout_ms = choice % 3 == 0 ? 20 : 0;
    clients_[rank]->Post(record);
    TakeNames();
  }

  // Names that this node has given to its sends, so that the script can speak of them.
  void TakeNames() {
    cluster_.Advance(100 * kMicrosecond);
    for (const transport::Notice& sent : cluster_.observed(0).sent) {
      const auto told = service::DecodeNotices(sent.bytes);
      HR_CHECK(told.ok(), sent.bytes.size());
      for (const service::SendNotice& each : *told) {
        if (each.kind == service::SendNoticeKind::kAnnounced) own_ = each;
      }
    }
    cluster_.observed(0).sent.clear();
  }

  void Deliver(std::uint8_t action, Script& script) {
    const std::uint8_t choice = script.Read<std::uint8_t>();
    service::SendNotice notice{
        .kind = static_cast<service::SendNoticeKind>(1 + action % 7),
        .send = service::kSendNamesBegin + script.Read<std::uint8_t>() % 8U,
        .source = 2 + choice % 2U,
        .target = choice / 2 % 2U,
        .tag = choice / 4 % 2U,
        .count = choice % 16 == 15 ? std::uint64_t{1} << 30 : 20 * (choice / 4 % 2U),
        .dtype = choice % 16 == 14 ? DType::kInt64 : DType::kFloat32,
        .on_gpu = choice % 32 == 13,
        .ready = choice % 16 != 12,
        .blocks = script.Read<std::uint8_t>() % 4U,
        .code = static_cast<Code>(choice / 16 % 8),
        .cause = "the other node says so"};
    if (!notice.FromSender()) {
      std::swap(notice.source, notice.target);
      if (choice >= 0x40) {
        const std::uint32_t blocks = notice.blocks;
        const service::SendNoticeKind kind = notice.kind;
        const Code code = notice.code;
        notice = own_;
        notice.kind = kind;
        notice.blocks = blocks;
        notice.code = code;
      }
    }
    if (notice.kind == service::SendNoticeKind::kAnnounced && choice % 8 >= 5) {
      notice.data.resize(notice.count * SizeOf(notice.dtype) % (2 * service::kSendDataMax));
    }
    // As the lane lets them through: checked one by one.
    std::vector<std::byte> bytes;
    service::Encode(notice, bytes);
    auto passed = service::DecodeNotices(bytes);
    if (!passed) return;
    cluster_.node(0).Send(service::SendNotices{job_.id, 1, std::move(*passed)});
    TakeNames();
  }

  // Bytes of a send of the other node, as a node sends them that does as it likes: perhaps before
  // they may go, of another size, or twice.
  void SendData(Script& script) {
    const std::uint8_t choice = script.Read<std::uint8_t>();
    const std::uint64_t name = service::kSendNamesBegin + script.Read<std::uint8_t>() % 8U;
    constexpr std::uint64_t kCounts[] = {0, 4, 5, 6, 8, 16, 20, 1000};
    const std::uint64_t count = kCounts[choice % std::size(kCounts)];
    const transport::MessageHeader header{.key = support::HandDrivenCluster::KeyOf(job_.id),
                                          .epoch = 1,
                                          .plan_version = 1,
                                          .position = name << 16 | choice / 8 % 4U,
                                          .count = count,
                                          .kind = static_cast<std::uint8_t>(ipc::kSend),
                                          .dtype = static_cast<std::uint8_t>(DType::kFloat32),
                                          .root = 0,
                                          .sender = 1};
    const std::size_t rail = choice / 32U % cluster_.rails_count();
    cluster_.network().Inject(cluster_.WireName(0, rail), header,
                              std::vector<std::byte>(count * sizeof(float)));
    TakeNames();
  }

  // A message of notices that need be none.
  void SendBytes(Script& script) {
    std::vector<std::byte> bytes(1U + script.Read<std::uint8_t>());
    for (std::byte& each : bytes) each = static_cast<std::byte>(script.Read<std::uint8_t>());
    const transport::MessageHeader header{.key = support::HandDrivenCluster::KeyOf(job_.id),
                                          .epoch = 1,
                                          .plan_version = 1,
                                          .position = messages_++,
                                          .kind = transport::NoticeLinks::kKind,
                                          .root = 0,
                                          .sender = 1};
    cluster_.network().Inject(cluster_.WireName(0, 0), header, bytes);
    TakeNames();
  }

  void Close(std::uint32_t rank, bool orderly) {
    if (gone_[rank]) return;
    gone_[rank] = true;
    cluster_.node(0).Close(*clients_[rank], orderly, "was closed by the script");
    cluster_.Advance(kMillisecond);
  }

  support::JobSpec job_{.world_size = 0, .rendezvous = "a:7733"};
  support::HandDrivenCluster cluster_;
  support::ClientEnd* clients_[kRanks] = {};
  bool gone_[kRanks] = {};
  service::SendNotice own_{};
  std::uint64_t messages_ = 0;  // of notices, from the other node
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  Script script(bytes, size);
  fuzz::Play<Trial>(script);
  return 0;
}
