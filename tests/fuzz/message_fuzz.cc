// What a node that lies, or nobody, may send to a lane between nodes while it works: the bytes are
// a script of posts, of messages with any header, and of time. Whatever they are, each transfer
// ends exactly once, and when the group is closed nothing of it is left. With two rails the
// messages go through what numbers and acknowledges them, too.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/matrix.h"
#include "tests/fuzz/message_act.h"
#include "tests/unit/transport/exchange_fleet.h"
#include "transport/codec/codec.h"
#include "transport/exchange/message_tail.h"
#include "transport/rails/rail_peers.h"

namespace {

using namespace headrace;             // NOLINT: this program has no names of its own
using namespace headrace::transport;  // NOLINT

constexpr std::size_t kActsMax = 128;
constexpr std::size_t kStepsMax = 64;  // of one act
constexpr std::size_t kPostsMax = 10;
constexpr std::uint64_t kCount = 100;
constexpr std::uint64_t kRows = 64;  // and columns, of what crosses as two factors
constexpr std::uint8_t kRank = 1;
constexpr std::uint32_t kDataCount = 2;
constexpr std::size_t kPieceSize = 4096;
constexpr std::uint64_t kFirstWireId = 1000;  // of a Fleet's nodes

class Trial {
 public:
  // With a server as the third node, which begins a transfer by what a message says.
  Trial(bool with_server, std::uint32_t rails_count)
      : rails_count_(rails_count),
        // Rails carry what goes at once.
        fleet_({.data_count = kDataCount,
                .servers_count = with_server ? 1U : 0U,
                .exchange = {.piece_size = kPieceSize, .staging_size = std::size_t{1} << 20},
                .network = {.eager_size = rails_count == 1 ? 256 : kPieceSize,
                            .closes_are_told = true},
                .rails_count = rails_count}) {}

  void Play(const MessageAct& act) {
    switch (act.kind % 4) {
      case MessageAct::kInject:
        Inject(act);
        break;
      case MessageAct::kPost:
        Post(act.honest % kDataCount);
        break;
      case MessageAct::kStep:
        for (std::size_t i = 0; i < std::min<std::size_t>(act.count, kStepsMax); ++i) fleet_.Step();
        break;
      case MessageAct::kClose:
        fleet_.node(act.honest % fleet_.nodes_count()).CloseGroup(1, "closed early");
        break;
    }
  }

  void Finish() {
    for (std::uint32_t node = 0; node < fleet_.nodes_count(); ++node) {
      fleet_.node(node).CloseGroup(1, "the input ends");
    }
    fleet_.RunToTheEnd();
    for (std::uint32_t node = 0; node < kDataCount; ++node) {
      HR_CHECK(fleet_.completions(node).size() == posted_[node], posted_[node]);
    }
    HR_CHECK(fleet_.network().open_count() == 0, fleet_.network().open_count());
    HR_CHECK(fleet_.network().staging_count() == 0, fleet_.network().staging_count());
    for (std::uint32_t node = 0; rails_count_ > 1 && node < fleet_.nodes_count(); ++node) {
      HR_CHECK(fleet_.rails(node).links_count() == 0, node, fleet_.rails(node).links_count());
    }
  }

 private:
  // Every other transfer crosses encoded, with residuals, which servers keep some of.
  static bool IsEncoded(std::uint64_t position) { return position % 2 == 0; }
  static DType TypeAt(std::uint64_t position) {
    return IsEncoded(position) ? DType::kFloat32 : DType::kInt32;
  }
  static Codec CodecAt(std::uint64_t position) {
    if (!IsEncoded(position)) return Codec::kNone;
    constexpr Codec kTurns[] = {
        Codec::kInt8, {Codec::kPowerSgd, kRank}, Codec::kLossless, Codec::kTopK, Codec::kRandomK};
    return kTurns[position / 2 % std::size(kTurns)];
  }
  static bool IsFactored(std::uint64_t position) {
    return CodecAt(position).kind == Codec::kPowerSgd;
  }
  static std::uint64_t CountAt(std::uint64_t position) {
    return IsFactored(position) ? kRows * kRows : kCount;
  }
  std::byte* MakeMemory(std::uint64_t count) {
    memory_.push_back(std::make_unique<std::vector<std::int32_t>>(count));
    return reinterpret_cast<std::byte*>(memory_.back()->data());
  }

  Transfer TransferAt(std::uint64_t position, std::uint32_t node) {
    Transfer transfer{.token = position,
                      .kind = Collective::kAllReduce,
                      .dtype = TypeAt(position),
                      .count = CountAt(position),
                      .group = 1,
                      .position = position,
                      .members_count = kDataCount,
                      .codec = CodecAt(position)};
    transfer.members[node] = MakeMemory(transfer.count);
    if (!IsEncoded(position)) return transfer;
    transfer.residual = MakeMemory(transfer.count);
    transfer.place = 1;
    if (!IsFactored(position)) return transfer;
    transfer.rows = kRows;
    transfer.factors = MakeMemory(FactorMemoryCount(transfer.codec, kRows, transfer.count));
    transfer.right_factor = MakeMemory(kRank * kRows);
    return transfer;
  }

  void Post(std::uint32_t node) {
    if (posted_[node] == kPostsMax) return;
    const Transfer transfer = TransferAt(posted_[node] + 1, node);
    const PostResult result = fleet_.node(node).Post(transfer, fleet_.network().now());
    posted_[node] += result == PostResult::kAccepted ? 1 : 0;
  }

  void Inject(const MessageAct& act) {
    MessageHeader header = act.header;
    if ((act.honest & MessageAct::kKey) != 0) header.key = KeyOf(1);
    if ((act.honest & MessageAct::kPlan) != 0) {
      header.epoch = 3;
      header.plan_version = 5;
    }
    if ((act.honest & MessageAct::kPosition) != 0) {
      header.position = header.position % kPostsMax + 1;
      header.piece = 0;
    }
    if ((act.honest & MessageAct::kShape) != 0) {
      header.count = CountAt(header.position);
      header.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
      header.dtype = static_cast<std::uint8_t>(TypeAt(header.position));
      header.codec = CodecAt(header.position).kind;
      header.codec_parameter = CodecAt(header.position).parameter;
      header.asked_codec = 0;
      header.asked_codec_parameter = 0;
      const bool factored = IsFactored(header.position);
      const bool served = fleet_.nodes_count() > kDataCount;
      header.rows = factored ? kRows : 0;
      header.place = IsEncoded(header.position) && !factored && served ? 1 : 0;
      header.reduction = static_cast<std::uint8_t>(Reduction::kSum);
      header.root = 0;
      header.divisor = 0;
    }
    if ((act.honest & MessageAct::kSender) != 0) header.sender = 1;
    const Codec codec = CodecAt(header.position);
    const bool to_server = header.sender == 1 && fleet_.nodes_count() > kDataCount;
    const bool has_tail = to_server && codec != Codec::kNone && !IsFactored(header.position);
    // Either factor is one piece.
    const std::size_t honest_size =
        IsFactored(header.position) ? kRank * kRows * sizeof(float)
                                    : EncodedSize(codec, kCount) + (has_tail ? kTailSizeMin : 0);
    const std::size_t size = (act.honest & MessageAct::kSize) != 0 ? honest_size : act.size % 8192;
    const std::uint32_t target = header.sender == 1 ? fleet_.nodes_count() - 1 : 0;
    const std::uint32_t to = fleet_.nodes_count() == kDataCount ? 0 : target;
    InjectAt(to, act, header, size);
  }
  void InjectAt(std::uint32_t to, const MessageAct& act, MessageHeader header, std::size_t size) {
    const std::size_t rail = act.count % rails_count_;
    const bool is_control = rails_count_ > 1 && (act.honest & MessageAct::kControl) != 0;
    if ((act.honest & MessageAct::kSequence) != 0 || is_control) {
      header.sequence %= 16;
      header.acknowledged %= 16;
    }
    if (is_control) {
      header.key = 0;
      header.kind %= 5;
      // Some numbers are those of wires that exist, others are not.
      header.operation_count = kFirstWireId + header.operation_count % 4;
      header.position = header.kind == kRailAcknowledgement ? KeyOf(1) : header.position % 16;
      size = act.size % 8 == 0 ? size : 0;
    }
    fleet_.network().Inject(Fleet::RailName(to, rail), header, std::vector<std::byte>(size));
  }

  std::uint32_t rails_count_;
  std::vector<std::unique_ptr<std::vector<std::int32_t>>> memory_;  // outlives the fleet
  Fleet fleet_;
  std::array<std::size_t, kDataCount> posted_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  Trial trial(bytes[0] % 2 != 0, 1 + bytes[0] / 2U % 2);
  ++bytes;
  --size;
  for (std::size_t i = 0; i < kActsMax && size >= sizeof(MessageAct); ++i) {
    MessageAct act;
    std::memcpy(static_cast<void*>(&act), bytes, sizeof act);
    bytes += sizeof act;
    size -= sizeof act;
    trial.Play(act);
  }
  trial.Finish();
  return 0;
}
