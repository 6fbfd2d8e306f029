#include "transport/nccl/nccl_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "ipc/base/check.h"
#include "transport/nccl/nccl_communicator_cache.h"
#include "transport/nccl/nccl_scalar.h"
#include "transport/nvlink/nvlink_transport.h"
#include "transport/poll_timer.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t Bit(Collective kind) { return 1U << static_cast<unsigned>(kind); }

Error Refused(std::string cause) { return Error(Code::kInvalidArgument, std::move(cause)); }

bool IsAverage(const Transfer& transfer) {
  return Reduces(transfer.kind) && transfer.reduction == Reduction::kAverage;
}

// Where NCCL divides by multiplying before it sums: exact for powers of two, else nearly.
bool Scales(const Transfer& transfer) { return IsAverage(transfer) && IsFloating(transfer.dtype); }

// What NCCL does not take goes over these; where they are missing it is refused with the reason.
Result<std::unique_ptr<NvlinkTransport>> OpenKernels(const Gpus& gpus, const NcclOptions& options) {
  if (!options.kernels) return Error(Code::kUnavailable, "kernels are off");
  NvlinkOptions kernels{.piece_size = options.piece_size};
  if (options.ctas_max != 0) kernels.ctas = options.ctas_max;
  return NvlinkTransport::Open(gpus, kernels);
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
  Parts(const Gpus& gpus_of_all, std::shared_ptr<NcclLibrary> opened, std::vector<CudaStream> made,
        const NcclOptions& options)
      : gpus(gpus_of_all),
        patience_ns(options.cancel_patience_ns + options.abort_timeout_ns),
        kernels(OpenKernels(gpus, options)),
        on_kernels(options.on_kernels),
        library(std::move(opened)),
        streams(std::move(made)),
        cache(*library, gpus, streams,
              {.groups_max = kGroupsMax,
               .ctas_max = options.ctas_max,
               .form_timeout_ns = options.form_timeout_ns}) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      launch_streams.push_back({.context = &gpus.contexts()[i], .stream = streams[i].get().thing});
    }
  }

  Status KernelsTake(const Transfer& transfer) const;
  PostResult PostToKernels(const Transfer& transfer, const Error& why);
  // Goes on with them, and says whether to look again at once.
  bool WorkByKernels(std::vector<Completion>& completions);

  const Gpus& gpus;
  TimeNs patience_ns;  // for the end of what is open
  Capabilities capabilities;
  Result<std::unique_ptr<NvlinkTransport>> kernels;
  std::function<void(const std::string& reason)> on_kernels;  // empty once it was called
  std::uint64_t kernels_open = 0;                             // transfers
  std::shared_ptr<NcclLibrary> library;  // owners: this, and launch threads that NCCL keeps
  std::vector<CudaStream> streams;       // by GPU
  std::vector<NcclLaunchStream> launch_streams;
  NcclCommunicatorCache cache;
  std::unique_ptr<NcclQueue> queue;
  PollTimer poll_timer;
  TimeNs now = 0;  // of the last call that knew it
  // Counters that others read; nothing is ordered by them.
  std::atomic<std::uint64_t> by_nccl = 0;
  std::atomic<std::uint64_t> by_kernels = 0;
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
  auto queue = NcclQueue::Make(parts->cache, parts->launch_streams,
                               {.transfers_max = kTransfersMax,
                                .piece_size = options.piece_size,
                                .cancel_patience_ns = options.cancel_patience_ns,
                                .abort_timeout_ns = options.abort_timeout_ns,
                                .threads_library = parts->library});
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
  if (queue.empty()) parts_->cache.FinishAll();
}

namespace {

// One rank of each GPU, and of the host at most what is broadcast.
Status CheckMembers(const Transfer& transfer) {
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
  return {};
}

}  // namespace

Status NcclTransport::CheckTransfer(const Transfer& transfer) {
  if (const Status members = CheckMembers(transfer); !members) return members;
  const std::uint32_t divisor = transfer.divisor != 0 ? transfer.divisor : transfer.members_count;
  if (IsAverage(transfer) && divisor != transfer.members_count) {
    return Refused(fmt::format("NCCL divides sums of {} by the number of GPUs, {}, and not by {}",
                               Name(transfer.dtype), transfer.members_count, divisor));
  }
  return {};
}

NcclWays NcclTransport::ways() const {
  return {.by_nccl = parts_->by_nccl.load(std::memory_order_relaxed),
          .by_kernels = parts_->by_kernels.load(std::memory_order_relaxed)};
}

const Capabilities& NcclTransport::capabilities() const { return parts_->capabilities; }

// Whether the kernels can carry it out; the error is theirs.
Status NcclTransport::Parts::KernelsTake(const Transfer& transfer) const {
  return kernels ? (*kernels)->CheckTransfer(transfer) : Status(kernels.error());
}

PostResult NcclTransport::Parts::PostToKernels(const Transfer& transfer, const Error& why) {
  const PostResult posted = (*kernels)->Post(transfer, now);
  if (posted == PostResult::kBusy) return posted;
  ++kernels_open;
  by_kernels.fetch_add(1, std::memory_order_relaxed);
  if (on_kernels) std::exchange(on_kernels, {})(why.text());
  return posted;
}

PostResult NcclTransport::Post(const Transfer& transfer, TimeNs now) {
  Parts& parts = *parts_;
  HR_CHECK(transfer.members_count > 0 && transfer.members_count <= kMembersMax,
           transfer.members_count);
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    HR_CHECK(transfer.devices[member] < static_cast<int>(parts.gpus.count()), member);
  }
  CheckMemory(transfer);
  parts.now = now;
  if (parts.queue->open_count() + parts.kernels_open >= kTransfersMax) return PostResult::kBusy;
  parts.poll_timer.PollNow(now);
  std::optional<Error> refused;
  if (const Status taken = CheckTransfer(transfer); !taken) {
    const Status kernels = parts.KernelsTake(transfer);
    if (kernels) return parts.PostToKernels(transfer, taken.error());
    // Nearly is better than not at all.
    if (!Scales(transfer) || !CheckMembers(transfer)) {
      refused = Error(taken.code(), fmt::format("{}; and its own kernels cannot do it either: {}",
                                                taken.error().text(), kernels.error().text()));
    }
  }
  if (!refused) parts.by_nccl.fetch_add(1, std::memory_order_relaxed);
  parts.queue->Add(transfer, std::move(refused));
  return PostResult::kAccepted;
}

void NcclTransport::Cancel(std::uint64_t token) {
  parts_->queue->Cancel(token, parts_->now);
  if (parts_->kernels) (*parts_->kernels)->Cancel(token);
}

bool NcclTransport::Parts::WorkByKernels(std::vector<Completion>& completions) {
  if (kernels_open == 0) return false;
  const std::size_t before = completions.size();
  const bool worked = (*kernels)->DoWork(now, completions);
  for (std::size_t i = before; i < completions.size(); ++i) {
    --kernels_open;
    Completion& completion = completions[i];
    if (completion.cause.empty()) continue;
    completion.cause = "by kernels, since NCCL does not take it: " + completion.cause;
  }
  return worked;
}

bool NcclTransport::DoWork(TimeNs now, std::vector<Completion>& completions) {
  Parts& parts = *parts_;
  parts.now = now;
  const std::uint64_t before = parts.queue->progress();
  parts.queue->Step(now, completions);
  const bool kernels_worked = parts.WorkByKernels(completions);
  // Groups that end need nobody; they are let go when there is work again, or at the end.
  parts.cache.Sweep(*parts.queue);
  const bool open = !parts.queue->empty() || parts.kernels_open != 0;
  return parts.poll_timer.OnPolled(open, kernels_worked || parts.queue->progress() != before, now);
}

TimeNs NcclTransport::NextLook() const { return parts_->poll_timer.next_ns(); }

}  // namespace headrace::transport
