#include "transport/nvlink/gpu.h"

#include <algorithm>
#include <array>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

static_assert(kMembersMax <= kBuffersMax);
// All runs of a piece, or both sides of each member's part, in so many launches.
static_assert(kRunsMax / kStretchesMax + 1 <= kOperationsMax);
static_assert(2 * kMembersMax / kStretchesMax + 1 <= kOperationsMax);

constexpr std::uintptr_t kNone = kUnitSize;  // no buffers, so no place in a unit

// Where in a unit of 16 bytes all of these pointers are, and those before; false where they differ.
template <typename Pointers>
bool FindPlace(const Pointers& pointers, std::uint32_t count, std::uint64_t mask,
               std::uintptr_t& place) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if ((mask >> i & 1U) == 0) continue;
    const std::uintptr_t of = AddressOf(pointers[i]) % kUnitSize;
    if (place == kNone) place = of;
    if (of != place) return false;
  }
  return true;
}

}  // namespace

Result<Gpu> Gpu::Open(const Gpus& gpus, CuDevice device, std::uint32_t ctas) {
  Gpu gpu;
  const PrimaryContext& context = gpus.context(device);
  gpu.driver_ = &gpus.driver();
  gpu.context_ = context.get().context;
  gpu.ctas_ = ctas;
  auto kernels = Kernels::Load(context);
  if (!kernels) return kernels.error();
  gpu.kernels_ = std::move(*kernels);
  for (StreamQueue* queue : {&gpu.sums_, &gpu.moves_}) {
    auto opened = StreamQueue::Open(context);
    if (!opened) return opened.error();
    *queue = std::move(*opened);
  }
  return gpu;
}

Status Gpu::StartPiece(const Transfer& transfer, const WorkLayout& layout, std::uint64_t piece,
                       std::uint32_t place, CuAddress multicast, std::uint32_t slot,
                       bool& is_under_way) {
  const CurrentContext current(*driver_, context_);
  if (auto done = Outcome(current.result(), "make the context current"); !done) return done;
  buffers_ = layout.BuffersOf(transfer, place);
  std::uint64_t copies = 0;
  std::uint64_t size = 0;
  layout.ForEachRange(transfer, piece, place, [&](const GpuRange& span) {
    copies += span.outputs_count;
    size += span.size * span.outputs_count;
  });
  HR_CHECK(QueueOf(layout.work()).HasRoom(), transfer.token, piece);
  if (size == 0) return {};
  const bool by_engines = layout.work() == Work::kCopy && SuitsEngines(copies, size);
  Status given = by_engines ? MoveByEngines(transfer, layout, piece, place)
                            : RunKernels(transfer, layout, piece, place, multicast);
  is_under_way = true;
  Status marked = QueueOf(layout.work()).EndPiece(slot);
  return given ? marked : given;
}

Status Gpu::Outcome(CuResult result, std::string_view doing) const {
  if (result == CuResult::kSuccess) return {};
  return FailedOnGpu(*driver_, result, doing);
}

bool Gpu::SuitsEngines(std::uint64_t copies, std::uint64_t size) {
  return copies == 1 || (copies <= kOperationsMax && size / copies >= kEngineCopySizeMin);
}

Status Gpu::MoveByEngines(const Transfer& transfer, const WorkLayout& layout, std::uint64_t piece,
                          std::uint32_t place) {
  Status done;
  layout.ForEachRange(transfer, piece, place, [&](const GpuRange& span) {
    if (done) done = CopyRange(span);
  });
  return done;
}

// The first copy to a GPU crosses the link, the others are made from it.
Status Gpu::CopyRange(const GpuRange& span) {
  HR_CHECK(span.first_output + span.outputs_count <= buffers_.outputs_count, span.first_output,
           span.outputs_count);
  const auto offset = [&](std::uint64_t packed, std::uint32_t index) {
    return (packed >> index & 1U) != 0 ? span.packed_offset : span.offset;
  };
  auto from = AddressOf(buffers_.inputs[span.first_input] +
                        offset(buffers_.packed_inputs, span.first_input));
  for (std::uint32_t i = span.first_output; i < span.first_output + span.outputs_count; ++i) {
    const auto to = AddressOf(buffers_.outputs[i] + offset(buffers_.packed_outputs, i));
    const CuResult result = driver_->call().memcpy_async(to, from, span.size, moves_.stream());
    if (result != CuResult::kSuccess) return Outcome(result, "start a copy");
    if ((buffers_.packed_outputs >> i & 1U) == 0) from = to;  // not one on the host
  }
  return {};
}

Status Gpu::RunKernels(const Transfer& transfer, const WorkLayout& layout, std::uint64_t piece,
                       std::uint32_t place, CuAddress multicast) {
  const bool reduces = layout.work() == Work::kReduce;
  const CuFunction kernel =
      reduces ? kernels_.Reduces(transfer.reduction, transfer.dtype) : kernels_.copy();
  const CuStream stream = QueueOf(layout.work()).stream();
  const CuFunction switched = multicast != 0 ? kernels_.Switched(transfer.dtype) : nullptr;
  Status done;
  BeginWork(transfer, multicast);
  layout.ForEachRange(transfer, piece, place, [&](const GpuRange& span) {
    AddStretch(span);
    if (work_.stretches_count < kStretchesMax) return;
    if (done) done = Launch(kernel, switched, stream);
    work_.stretches_count = 0;
  });
  if (done && work_.stretches_count != 0) done = Launch(kernel, switched, stream);
  return done;
}

void Gpu::BeginWork(const Transfer& transfer, CuAddress multicast) {
  work_.multicast = reinterpret_cast<std::byte*>(multicast);
  work_.multicast_outputs = transfer.kind == Collective::kAllReduce;
  std::ranges::copy(buffers_.inputs, work_.inputs);
  std::ranges::copy(buffers_.outputs, work_.outputs);
  work_.packed_inputs = buffers_.packed_inputs;
  work_.packed_outputs = buffers_.packed_outputs;
  work_.inputs_count = buffers_.inputs_count;
  work_.stretches_count = 0;
  work_.divisor = 0;
  work_.factor = 1;
  if (transfer.reduction == Reduction::kAverage && Reduces(transfer.kind)) {
    SetAverage(work_, transfer.divisor != 0 ? transfer.divisor : transfer.members_count,
               !IsInteger(transfer.dtype));
  }
}

void Gpu::AddStretch(const GpuRange& span) {
  HR_CHECK(work_.stretches_count < kStretchesMax && span.size <= UINT32_MAX, span.size);
  HR_CHECK(span.first_input < buffers_.inputs_count, span.first_input, buffers_.inputs_count);
  KernelStretch& stretch = work_.stretches[work_.stretches_count];
  stretch = {.offset = span.offset,
             .packed_offset = span.packed_offset,
             .size = static_cast<std::uint32_t>(span.size),
             .units_end = 0,
             .first_input = static_cast<std::uint16_t>(span.first_input),
             .first_output = static_cast<std::uint16_t>(span.first_output),
             .outputs_count = static_cast<std::uint16_t>(span.outputs_count)};
  const std::uint32_t before =
      work_.stretches_count == 0 ? 0 : work_.stretches[work_.stretches_count - 1].units_end;
  stretch.units_end = before + UnitsOf(work_, stretch);
  HR_CHECK(stretch.units_end >= before, before, stretch.units_end);
  ++work_.stretches_count;
}

Status Gpu::Launch(CuFunction kernel, CuFunction switched, CuStream stream) {
  HR_CHECK(work_.stretches_count > 0 && work_.stretches_count <= kStretchesMax,
           work_.stretches_count);
  std::uintptr_t loose = kNone;
  std::uintptr_t packed = kNone;
  bool aligned =
      FindPlace(buffers_.inputs, buffers_.inputs_count, ~work_.packed_inputs, loose) &&
      FindPlace(buffers_.outputs, buffers_.outputs_count, ~work_.packed_outputs, loose) &&
      FindPlace(buffers_.inputs, buffers_.inputs_count, work_.packed_inputs, packed) &&
      FindPlace(buffers_.outputs, buffers_.outputs_count, work_.packed_outputs, packed);
  for (std::uint32_t i = 0; aligned && loose != kNone && packed != kNone; ++i) {
    if (i == work_.stretches_count) break;
    const KernelStretch& stretch = work_.stretches[i];
    aligned = (loose + stretch.offset) % kUnitSize == (packed + stretch.packed_offset) % kUnitSize;
  }
  work_.aligned = aligned;
  if (aligned && switched != nullptr) kernel = switched;
  const std::uint32_t units = work_.stretches[work_.stretches_count - 1].units_end;
  const std::uint32_t blocks =
      std::clamp<std::uint32_t>((units + kKernelThreads - 1) / kKernelThreads, 1, ctas_);
  std::array<void*, 1> parameters = {&work_};
  return Outcome(driver_->call().launch_kernel(kernel, blocks, 1, 1, kKernelThreads, 1, 1, 0,
                                               stream, parameters.data(), nullptr),
                 "launch a kernel");
}

void Gpu::Wait() {
  if (idle()) return;
  const CurrentContext current(*driver_, context_);
  for (const StreamQueue* queue : {&sums_, &moves_}) {
    // Its answer is of no use any more: nobody is left to receive it.
    (void)driver_->call().stream_synchronize(queue->stream());
  }
}

}  // namespace headrace::transport
