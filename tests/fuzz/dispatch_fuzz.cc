// The whole data path against clients that write what they like: two ranks of a job, driven by
// hand. The bytes are a script of posts (honest or not), of operations, sends and receives, and of
// gradients that move by a plan, words that nobody writes, memory that overlaps, garbage, time,
// standstills, inboxes that are full for a while, and loss. Whatever they are, every record that
// was read ends exactly once, no time is kept for what nobody does, and when all ranks are gone
// nothing is left.
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

#include "ipc/base/check.h"
#include "tests/fuzz/script.h"
#include "tests/support/hand_driven_node.h"
#include "tests/unit/service/dispatch/planned.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own
using fuzz::Script;

constexpr std::uint32_t kRanks = 2;
constexpr TensorId kTensor{3};  // behind the gradients

std::shared_ptr<const service::Layout> GradientsLayout() {
  return support::PackedLayout({10, 20, 30});
}

// Mostly a record that makes sense, so that ranks agree now and then.
ipc::Record LikelyRecord(std::uint8_t choice, std::uint32_t rank) {
  const auto count = static_cast<std::uint64_t>(choice % 16) * 64;
  switch (choice >> 6) {
    case 0:
      if (choice % 4 != 0) {
        const auto layout = GradientsLayout();
        return std::bit_cast<ipc::Record>(support::GradientOf(*layout, choice % 4 - 1U));
      }
      return support::Barrier();
    case 1: {
      ipc::Record record =
          support::OnTensor(Collective::kAllReduce, DType::kFloat32, count, kTensor);
      // Mostly beside each other.
      record.offset = choice % 4 * 1024U;
      if (choice % 16 == 15) record.flags = ipc::kRecordAwaitsWord;
      return record;
    }
    case 2:
      return support::OnSegment(Collective::kAllGather, DType::kUInt8, count);
    default: {
      if (choice % 4 == 0) {
        const auto kind = choice % 8 == 0 ? Collective::kBroadcast : Collective::kReduce;
        return support::OnSegment(kind, DType::kInt32, count, choice % 8 * 4U);
      }
      const std::uint64_t tag = choice / 8 % 2;
      const std::uint32_t other = choice % 16 == 15 ? ipc::kAnyRank : 1 - rank;
      ipc::Record record = choice % 4 == 1 ? support::SendTo(1 - rank, 32 * tag, tag)
                                           : support::ReceiveFrom(other, 32 * tag, tag);
      record.offset = 16384 + choice % 8 * 128U;
      return record;
    }
  }
}

// One that moves in messages, most of which fit what the other rank posts; its table is written to
// the rank's memory, which others of its posts may still have to be read from.
ipc::Record MessagesRecord(std::uint8_t choice, const support::ClientEnd& client) {
  constexpr std::uint64_t kTable = 60'000;
  constexpr Collective kKinds[] = {kAllToAll, kGather, kScatter, kAllToAll};
  const Collective kind = kKinds[choice % 4];
  const std::uint32_t own = client.rank();
  const std::uint32_t root = choice / 4 % kRanks;
  const std::uint64_t count = choice % 16 == 15 ? 40 + choice : 32U * (choice / 16 % 4U);
  const bool sends = kind == kAllToAll || (kind == kGather) == (own != root);
  const bool receives = kind == kAllToAll || !sends;
  ipc::PartRow rows[kRanks]{};
  if (sends && count != 0) rows[1 - own].sent_count = count;
  if (receives && count != 0) {
    rows[1 - own].received_offset = choice % 32 == 31 ? 0 : 512;
    rows[1 - own].received_count = count;
  }
  std::memcpy(client.Memory().data() + kTable, rows, sizeof rows);
  ipc::Record record = support::OnSegment(kind, DType::kInt32, 1024, 24'576);
  record.flags = ipc::kRecordHasParts;
  record.root = root;
  record.tag = kTable;
  return record;
}

class Trial {
 public:
  static constexpr std::size_t kStepsMax = 4000;

  Trial() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      clients_[rank] = &node_.Attach({}, rank);
      support::HandIn(node_, *clients_[rank], GradientsLayout());
      node_.AddTensor(*clients_[rank], kTensor,
                      {.offset = 8192, .count = 2048, .dtype = DType::kFloat32});
    }
    // One gradient in two blocks, two in one.
    support::Adopt(node_, JobId{1},
                   support::PlanOf({{{2, 10, 20}}, {{0, 0, 10}, {1, 0, 20}, {2, 0, 10}}}));
    node_.Settle();
  }

  void Step(Script& script) {
    const auto action = script.Read<std::uint8_t>();
    const std::uint32_t rank = action % kRanks;
    if (gone_[rank] && action < 0xe8) return;
    support::ClientEnd& client = *clients_[rank];
    if (action < 0x70) {
      client.Post(LikelyRecord(script.Read<std::uint8_t>(), rank), true);
    } else if (action < 0x80) {
      client.Post(MessagesRecord(script.Read<std::uint8_t>(), client), true);
    } else if (action < 0xa0) {
      client.Post(script.Read<ipc::Record>(), true);
    } else if (action < 0xc0) {
      node_.TurnDispatch();
    } else if (action < 0xd0) {
      node_.TurnLane();
    } else if (action < 0xd8) {
      client.PostGarbage(script.Read<std::uint64_t>());
      // No honest commit follows; the session ends when the service reads it.
    } else if (action < 0xdc) {
      Close(rank, script.Read<std::uint8_t>() % 2 == 0);
    } else if (action >= 0xe8 && action < 0xea) {
      node_.rpc().full = action % 2 == 0;
      node_.peers().full = action % 2 == 0;
    } else if (action >= 0xea && action < 0xec) {
      node_.watch_tap().full = action % 2 == 0;
    } else if (action >= 0xec && action < 0xf0) {
      node_.Stall(script.Read<std::uint8_t>() * kSecond);
    } else if (action >= 0xf0) {
      node_.Advance(script.Read<std::uint8_t>() * kSecond);
    } else {
      node_.Settle();
    }
  }

  void Finish() {
    node_.rpc().full = false;
    node_.peers().full = false;
    node_.watch_tap().full = false;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      if (!gone_[rank]) Close(rank, false);
    }
    node_.Advance(kSecond);
    // No GPU is here, so nothing may have dispatch look for ready words again and again. Deadlines
    // of what has ended may stay behind.
    HR_CHECK(node_.dispatch().NextDeadline() > node_.now + kMillisecond,
             node_.dispatch().NextDeadline(), node_.now);
    const ipc::CountersRow counters = node_.Counters();
    HR_CHECK(counters.operations_ended <= counters.records_read, counters.operations_ended);
    HR_CHECK(node_.discarded_in_use() == 0, node_.discarded_in_use());
    HR_CHECK(node_.RowsInUse() == 0, node_.RowsInUse());
    for (const support::ClientEnd* client : clients_) HR_CHECK(node_.Discarded(*client));
    const ipc::LaneRow lane = node_.LaneRow();
    HR_CHECK(lane.in_flight_bytes == 0 && lane.queued_stages == 0, lane.in_flight_bytes);
  }

 private:
  void Close(std::uint32_t rank, bool orderly) {
    gone_[rank] = true;
    node_.Close(*clients_[rank], orderly, "was closed by the script");
    node_.Settle();
  }

  support::HandDrivenNode node_;
  support::ClientEnd* clients_[kRanks] = {};
  bool gone_[kRanks] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  Script script(bytes, size);
  fuzz::Play<Trial>(script);
  return 0;
}
