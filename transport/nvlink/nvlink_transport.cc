#include "transport/nvlink/nvlink_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "ipc/base/check.h"
#include "transport/memory/cuda_device.h"
#include "transport/nvlink/gpu.h"
#include "transport/nvlink/work_layout.h"
#include "transport/poll_timer.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t Bit(Collective kind) { return 1U << static_cast<unsigned>(kind); }

Capabilities MakeCapabilities(std::size_t piece_size) {
  return {.name = "nvlink",
          .collectives = Bit(Collective::kAllReduce) | Bit(Collective::kBroadcast) |
                         Bit(Collective::kReduceScatter) | Bit(Collective::kAllGather) |
                         Bit(Collective::kBarrier) | Bit(Collective::kReduce),
          .transfers_max = NvlinkTransport::kTransfersMax,
          .piece_size = piece_size,
          .device_memory = true};
}

struct Slot {
  Transfer transfer;
  WorkLayout layout;
  CuAddress multicast = 0;       // all members at once; 0: each for itself
  std::uint64_t next_piece = 0;  // to give out
  std::uint32_t under_way = 0;   // shares that were given out and are not done
  bool cancelled = false;
  Code code = Code::kOk;  // of the first failure
  std::string cause{};
  TimeNs begin_ns = 0;

  bool HasPieces() const {
    return !cancelled && code == Code::kOk && next_piece != layout.pieces_count();
  }
  bool IsOver() const { return under_way == 0 && !HasPieces(); }

  void Fail(const Error& error) {
    if (code != Code::kOk) return;
    code = error.code();
    cause = error.text();
  }
};

}  // namespace

struct NvlinkTransport::Parts {
  explicit Parts(std::size_t piece_size) : capabilities(MakeCapabilities(piece_size)) {}

  bool HasRoom(const WorkLayout& layout);
  // Whether there was any, as the next.
  bool StartNextPiece();
  bool PopEnded();
  void ReportEnded(TimeNs now, std::vector<Completion>& completions);
  // Where the switch can sum it; else 0.
  CuAddress MulticastOf(const Transfer& transfer, const WorkLayout& layout);
  // The first member that a GPU which works for the transfer cannot reach, as an error.
  Status CheckReach(const Transfer& transfer, const WorkLayout& layout) const;

  Capabilities capabilities;
  std::vector<Gpu> gpus;                   // by ordinal
  std::vector<std::vector<bool>> reaches;  // [GPU][peer]
  std::vector<Slot> slots{kTransfersMax};
  std::vector<std::uint32_t> free{};   // indices of slots without a transfer
  std::vector<std::uint32_t> queue{};  // indices of slots in order of their posts
  PollTimer poll_timer{};
  Multicast* multicast = nullptr;  // where it is wished for and possible
  std::string multicast_missing{};
  std::atomic<std::uint64_t> switched_count = 0;  // counts, for others to read
};

Result<std::unique_ptr<NvlinkTransport>> NvlinkTransport::Open(const Gpus& gpus,
                                                               const NvlinkOptions& options) {
  if (options.ctas == 0 || options.ctas > kNvlinkCtasMax) {
    return Error(Code::kInvalidArgument, fmt::format("{} blocks of threads: 1 to {} may run",
                                                     options.ctas, kNvlinkCtasMax));
  }
  if (options.piece_size == 0 || options.piece_size % kShareAlignment != 0 ||
      options.piece_size > kNvlinkPieceSizeMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("pieces of {} bytes: a multiple of {} up to {} is needed",
                             options.piece_size, kShareAlignment, kNvlinkPieceSizeMax));
  }
  if (gpus.count() > kGpusMax) {
    return Error(Code::kExhausted, fmt::format("{} GPUs, {} are the most: name fewer by "
                                               "CUDA_VISIBLE_DEVICES",
                                               gpus.count(), kGpusMax));
  }
  auto parts = std::make_unique<Parts>(options.piece_size);
  for (const CudaDevice& device : gpus.devices()) {
    auto gpu = Gpu::Open(gpus, device.ordinal, options.ctas);
    if (!gpu) return gpu.error().Within(fmt::format("GPU {}", device.ordinal));
    parts->gpus.push_back(std::move(*gpu));
    std::vector<bool>& reaches = parts->reaches.emplace_back();
    for (const CudaDevice& peer : gpus.devices()) {
      const auto can = CanAccessPeer(gpus.driver(), device.ordinal, peer.ordinal);
      if (!can) return can.error();
      reaches.push_back(*can);
    }
  }
  for (std::uint32_t i = kTransfersMax; i > 0; --i) parts->free.push_back(i - 1);
  parts->queue.reserve(kTransfersMax);
  if (options.multicast) {
    if (const Status started = gpus.multicast().Start(options.on_no_multicast); started) {
      parts->multicast = &gpus.multicast();
    } else {
      parts->multicast_missing = started.error().text();
      if (options.on_no_multicast) options.on_no_multicast(parts->multicast_missing);
    }
  }
  return std::unique_ptr<NvlinkTransport>(new NvlinkTransport(std::move(parts)));
}

NvlinkTransport::NvlinkTransport(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

NvlinkTransport::~NvlinkTransport() {
  for (Gpu& gpu : parts_->gpus) gpu.Wait();
}

Status NvlinkTransport::CheckTransfer(const Transfer& transfer) const {
  return parts_->CheckReach(transfer, WorkLayout(transfer, parts_->capabilities.piece_size));
}

const Capabilities& NvlinkTransport::capabilities() const { return parts_->capabilities; }

PostResult NvlinkTransport::Post(const Transfer& transfer, TimeNs now) {
  HR_CHECK(transfer.members_count >= 1 && transfer.members_count <= kMembersMax,
           transfer.members_count);
  HR_CHECK(capabilities().Supports(transfer.kind), static_cast<int>(transfer.kind));
  for (const std::int8_t device : std::span(transfer.devices).first(transfer.members_count)) {
    HR_CHECK(
        device == kHost || (device >= 0 && static_cast<std::size_t>(device) < parts_->gpus.size()),
        static_cast<int>(device));
  }
  CheckMemory(transfer);
  HR_CHECK(parts_->free.size() + parts_->queue.size() == kTransfersMax, parts_->free.size(),
           parts_->queue.size());
  if (parts_->free.empty()) return PostResult::kBusy;
  const std::uint32_t index = parts_->free.back();
  parts_->free.pop_back();
  Slot& slot = parts_->slots[index];
  HR_CHECK(slot.under_way == 0, index, slot.under_way);
  slot = {.transfer = transfer, .layout = WorkLayout(transfer, parts_->capabilities.piece_size)};
  if (const auto done = parts_->CheckReach(transfer, slot.layout); !done) slot.Fail(done.error());
  slot.multicast = parts_->MulticastOf(transfer, slot.layout);
  parts_->queue.push_back(index);
  parts_->poll_timer.PollNow(now);
  return PostResult::kAccepted;
}

void NvlinkTransport::Cancel(std::uint64_t token) {
  for (const std::uint32_t index : parts_->queue) {
    Slot& slot = parts_->slots[index];
    if (slot.transfer.token != token) continue;
    // One whose last piece is given out ends as it would have.
    const bool is_begun = slot.next_piece != 0;
    slot.cancelled = slot.cancelled || !is_begun || slot.HasPieces();
    return;
  }
}

bool NvlinkTransport::DoWork(TimeNs now, std::vector<Completion>& completions) {
  const bool ended = parts_->PopEnded();
  const bool given_out = parts_->StartNextPiece();
  parts_->ReportEnded(now, completions);
  return parts_->poll_timer.OnPolled(!parts_->queue.empty(), ended || given_out, now);
}

TimeNs NvlinkTransport::NextLook() const { return parts_->poll_timer.next_ns(); }

std::uint64_t NvlinkTransport::switched_count() const {
  return parts_->switched_count.load(std::memory_order_relaxed);
}

std::string NvlinkTransport::multicast_reason() const {
  return parts_->multicast != nullptr ? parts_->multicast->reason() : parts_->multicast_missing;
}

CuAddress NvlinkTransport::Parts::MulticastOf(const Transfer& transfer, const WorkLayout& layout) {
  const bool sums =
      transfer.reduction == Reduction::kSum || transfer.reduction == Reduction::kAverage;
  if (multicast == nullptr || layout.work() != Work::kReduce || !sums) return 0;
  if (transfer.dtype != DType::kFloat32 && transfer.dtype != DType::kFloat16 &&
      transfer.dtype != DType::kBFloat16) {
    return 0;
  }
  // One member on each GPU and none on the host.
  if (layout.gpus_count() < 2 || layout.gpus_count() != transfer.members_count) return 0;
  std::uint64_t size = transfer.runs.empty() ? transfer.Bytes() : 0;
  for (const Run& run : transfer.runs) {
    size = std::max(size, run.offset + run.count * SizeOf(transfer.dtype));
  }
  const CuAddress address = multicast->Find(
      transfer.Members(), std::span(transfer.devices).first(transfer.members_count), size);
  if (address != 0) switched_count.fetch_add(1, std::memory_order_relaxed);
  return address;
}

Status NvlinkTransport::Parts::CheckReach(const Transfer& transfer,
                                          const WorkLayout& layout) const {
  for (std::uint32_t place = 0; place < layout.gpus_count(); ++place) {
    for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
      const std::int8_t gpu = layout.gpu(place);
      const std::int8_t peer = transfer.devices[member];
      if (peer == kHost || reaches[static_cast<std::size_t>(gpu)][static_cast<std::size_t>(peer)]) {
        continue;
      }
      return Error(
          Code::kUnavailable,
          fmt::format("GPU {} cannot access memory of GPU {}: there is no direct path "
                      "between them (nvidia-smi topo -p2p r shows why); the nccl lane goes "
                      "around it, for one rank on each GPU",
                      gpu, peer));
    }
  }
  return {};
}

bool NvlinkTransport::Parts::HasRoom(const WorkLayout& layout) {
  for (std::uint32_t place = 0; place < layout.gpus_count(); ++place) {
    const auto gpu = static_cast<std::size_t>(layout.gpu(place));
    if (!gpus[gpu].HasRoom(layout.work())) return false;
  }
  return true;
}

// The oldest transfer's that has any and whose GPUs have room: sums do not wait for moves.
bool NvlinkTransport::Parts::StartNextPiece() {
  for (const std::uint32_t index : queue) {
    Slot& slot = slots[index];
    if (!slot.HasPieces() || !HasRoom(slot.layout)) continue;
    HR_CHECK(slot.next_piece < slot.layout.pieces_count(), slot.transfer.token, slot.next_piece);
    if (slot.next_piece == 0) slot.begin_ns = MonotonicNow();
    for (std::uint32_t place = 0; place < slot.layout.gpus_count(); ++place) {
      const std::int8_t ordinal = slot.layout.gpu(place);
      bool is_under_way = false;
      const auto given = gpus[static_cast<std::size_t>(ordinal)].StartPiece(
          slot.transfer, slot.layout, slot.next_piece, place, slot.multicast, index, is_under_way);
      slot.under_way += is_under_way ? 1U : 0U;
      if (!given) slot.Fail(given.error().Within(fmt::format("GPU {}", ordinal)));
    }
    ++slot.next_piece;
    return true;
  }
  return false;
}

bool NvlinkTransport::Parts::PopEnded() {
  bool any = false;
  for (std::size_t ordinal = 0; ordinal < gpus.size(); ++ordinal) {
    gpus[ordinal].PopEnded([&](std::uint32_t index, const Status& done) {
      any = true;
      HR_CHECK(index < slots.size() && slots[index].under_way > 0, index, ordinal);
      --slots[index].under_way;
      if (!done) slots[index].Fail(done.error().Within(fmt::format("GPU {}", ordinal)));
    });
  }
  return any;
}

void NvlinkTransport::Parts::ReportEnded(TimeNs now, std::vector<Completion>& completions) {
  std::erase_if(queue, [&](std::uint32_t index) {
    Slot& slot = slots[index];
    if (!slot.IsOver()) return false;
    HR_CHECK(free.size() < kTransfersMax, slot.transfer.token);
    const bool is_begun = slot.next_piece != 0;
    Code code = slot.code;
    if (code == Code::kOk && slot.cancelled) code = Code::kCancelled;
    completions.push_back({.token = slot.transfer.token,
                           .code = code,
                           .cause = std::move(slot.cause),
                           .begin_ns = is_begun ? slot.begin_ns : now,
                           .end_ns = is_begun ? MonotonicNow() : now});
    free.push_back(index);
    return true;
  });
}

}  // namespace headrace::transport
