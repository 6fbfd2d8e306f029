#include "transport/nccl/nccl_transport.h"

#include <fmt/format.h>

#include <optional>
#include <thread>
#include <utility>

#include "ipc/base/check.h"
#include "transport/nccl/nccl_cast.h"
#include "transport/nccl/nccl_scalar.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t Bit(Collective kind) { return 1U << static_cast<unsigned>(kind); }
constexpr std::string_view kRemedy = "set gpu_lane = nvlink";

Error Refused(std::string cause) {
  return Error(Code::kInvalidArgument, fmt::format("{}: {}", cause, kRemedy));
}

// The stream of each GPU that all of its calls go to.
Result<std::vector<CudaStream>> MakeStreams(const Gpus& gpus) {
  std::vector<CudaStream> streams;
  for (const PrimaryContext& context : gpus.contexts()) {
    Result<CudaStream> stream = CreateStream(context, kCuStreamNonBlocking, 0);
    if (!stream) return stream.error();
    streams.push_back(std::move(stream).value());
  }
  return streams;
}

}  // namespace

struct NcclTransport::Parts {
  Parts(const Gpus& gpus_of_all, std::unique_ptr<NcclLibrary> opened, std::vector<CudaStream> made,
        const NcclOptions& options)
      : gpus(gpus_of_all),
        patience_ns(options.cancel_patience_ns + options.abort_timeout_ns),
        library(std::move(opened)),
        streams(std::move(made)),
        cast(*library, gpus, streams,
             {.groups_max = kGroupsMax,
              .ctas_max = options.ctas_max,
              .form_timeout_ns = options.form_timeout_ns}) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      tracks.push_back({.context = &gpus.contexts()[i], .stream = streams[i].get().thing});
    }
  }

  const Gpus& gpus;
  TimeNs patience_ns;  // for the end of what is open
  Capabilities capabilities;
  std::unique_ptr<NcclLibrary> library;
  std::vector<CudaStream> streams;  // by GPU
  std::vector<NcclTrack> tracks;
  NcclCast cast;
  std::unique_ptr<NcclQueue> queue;
  TimeNs now = 0;  // of the last call that knew it
};

NcclTransport::NcclTransport(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<NcclTransport>> NcclTransport::Open(const Gpus& gpus,
                                                           const NcclOptions& options) {
  HR_CHECK(options.piece_size > 0 && options.piece_size % 128 == 0, options.piece_size);
  Result<std::unique_ptr<NcclLibrary>> library = NcclLibrary::Open(options.library);
  if (!library) return library.error();
  Result<std::vector<CudaStream>> streams = MakeStreams(gpus);
  if (!streams) return streams.error();
  auto parts = std::make_unique<Parts>(gpus, std::move(library).value(), std::move(streams).value(),
                                       options);
  parts->capabilities = {.name = "nccl",
                         .collectives = Bit(Collective::kAllReduce) |
                                        Bit(Collective::kReduceScatter) |
                                        Bit(Collective::kAllGather) | Bit(Collective::kBroadcast) |
                                        Bit(Collective::kReduce) | Bit(Collective::kBarrier),
                         .transfers_max = kTransfersMax,
                         .piece_size = options.piece_size,
                         .threads = 1,
                         .device_memory = true};
  auto queue = NcclQueue::Make(parts->cast, parts->tracks,
                               {.transfers_max = kTransfersMax,
                                .piece_size = options.piece_size,
                                .cancel_patience_ns = options.cancel_patience_ns,
                                .abort_timeout_ns = options.abort_timeout_ns});
  if (!queue) return queue.error();
  parts->queue = std::move(queue).value();
  return std::unique_ptr<NcclTransport>(new NcclTransport(std::move(parts)));
}

NcclTransport::~NcclTransport() {
  // What GPUs work on may end; it is aborted when it does not, which is bounded as well.
  NcclQueue& queue = *parts_->queue;
  std::vector<Completion> completions;
  queue.CancelAll(MonotonicNow());
  const TimeNs deadline = MonotonicNow() + parts_->patience_ns + kSecond;
  while (queue.Step(MonotonicNow(), completions) && MonotonicNow() < deadline) {
    std::this_thread::yield();
  }
  if (queue.empty()) parts_->cast.FinishAll();
}

Status NcclTransport::Takes(const Transfer& transfer) {
  if (transfer.kind == Collective::kBarrier) return {};
  std::uint64_t seen = 0;
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    const std::int8_t device = transfer.devices[member];
    const bool from_host = transfer.kind == Collective::kBroadcast && member == transfer.root;
    if (device == kHost && !from_host) {
      return Refused(
          fmt::format("member {} is memory of the host, which NCCL's ranks cannot stand "
                      "for in {}",
                      member, Name(transfer.kind)));
    }
    if (device == kHost) continue;
    const std::uint64_t bit = std::uint64_t{1} << static_cast<unsigned>(device);
    if ((seen & bit) != 0) {
      return Refused(
          fmt::format("member {} is on GPU {} like another, and NCCL takes one rank of "
                      "each GPU",
                      member, device));
    }
    seen |= bit;
  }
  const std::uint32_t divisor = transfer.divisor != 0 ? transfer.divisor : transfer.members_count;
  if (Reduces(transfer.kind) && transfer.reduction == Reduction::kAverage &&
      !IsFloating(transfer.dtype) && divisor != transfer.members_count) {
    return Refused(fmt::format("NCCL divides sums of {} by the number of GPUs, {}, and not by {}",
                               Name(transfer.dtype), transfer.members_count, divisor));
  }
  return {};
}

const Capabilities& NcclTransport::capabilities() const { return parts_->capabilities; }

std::string NcclTransport::LibraryText() const {
  return "NCCL " + NcclVersionText(parts_->library->version());
}

PostResult NcclTransport::Post(const Transfer& transfer, TimeNs now) {
  HR_CHECK(transfer.members_count > 0 && transfer.members_count <= kMembersMax,
           transfer.members_count);
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    HR_CHECK(transfer.devices[member] < static_cast<int>(parts_->gpus.count()), member);
  }
  CheckRuns(transfer);
  parts_->now = now;
  if (!parts_->queue->HasRoom()) return PostResult::kBusy;
  const Status taken = Takes(transfer);
  parts_->queue->Add(transfer, taken ? std::nullopt : std::optional(taken.error()));
  return PostResult::kAccepted;
}

void NcclTransport::Cancel(std::uint64_t token) { parts_->queue->Cancel(token, parts_->now); }

bool NcclTransport::DoWork(TimeNs now, std::vector<Completion>& completions) {
  parts_->now = now;
  const bool open = parts_->queue->Step(now, completions);
  // Groups that end need nobody; they are let go when there is work again, or at the end.
  parts_->cast.Sweep(*parts_->queue);
  return open;
}

bool NcclTransport::PrepareToSleep() { return parts_->queue->empty(); }

}  // namespace headrace::transport
