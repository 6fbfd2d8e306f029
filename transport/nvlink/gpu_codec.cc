#include "transport/nvlink/gpu_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "ipc/base/check.h"
#include "transport/network.h"
#include "transport/nvlink/kernel_image.h"

namespace headrace::transport {
namespace {

static_assert(kNodesMax <= kCodecInputsMax);
static_assert(kCodecBlock < kResidualStretchesMax);
constexpr std::uint32_t kWarps = kKernelThreads / kLanes;  // of a block of threads

struct NamedKernel {
  Codec::Kind kind;
  std::string_view name;
};
constexpr NamedKernel kNamedKernels[] = {{Codec::kBFloat16, "bf16"},
                                         {Codec::kFloat16, "fp16"},
                                         {Codec::kInt8, "int8"},
                                         {Codec::kInt4, "int4"},
                                         {Codec::kFloat8E4M3, "fp8_e4m3"},
                                         {Codec::kFloat8E5M2, "fp8_e5m2"},
                                         {Codec::kInt8Stochastic, "int8_stochastic"},
                                         {Codec::kInt4Stochastic, "int4_stochastic"},
                                         {Codec::kSign, "sign"},
                                         {Codec::kTopK, "topk"},
                                         {Codec::kRandomK, "randomk"},
                                         {Codec::kLossless, "lossless"}};

// The range lies in one piece.
float* ValuesOf(const EncodedRange& range) {
  RunWalk walk = range.walk;
  walk.Seek(range.range.begin);
  HR_CHECK(walk.stretch().end >= range.range.begin + range.range.count, range.range.begin,
           walk.stretch().end);
  // Kernels count bytes in 32 bits.
  HR_CHECK(range.range.count <= std::numeric_limits<std::uint32_t>::max() / sizeof(float),
           range.range.count);
  return reinterpret_cast<float*>(range.memory + walk.OffsetOf(range.range.begin));
}

FactorWork WorkOf(const DeviceMatrix& matrix) {
  const MatrixRows& rows = matrix.rows;
  HR_CHECK(rows.rank >= 1 && rows.rank <= kRankMax && rows.rows > 0 && rows.columns > 0, rows.rank,
           rows.rows, rows.columns);
  float* const q = matrix.factors + matrix.LeftCount();
  return {.values = rows.values,
          .residual = rows.residual,
          .p = matrix.factors,
          .q = q,
          .own_q = q + matrix.RightCount(),
          .rows = rows.rows,
          .columns = rows.columns,
          .rank = rows.rank,
          .divisor = 1,
          .is_finite = true,
          .rows_begin = 0,
          .rows_end = rows.rows};
}

}  // namespace

std::uint32_t GpuCodec::codecs() const {
  std::uint32_t all = 1U << Codec::kPowerSgd;
  for (const NamedKernel& each : kNamedKernels) all |= 1U << each.kind;
  return all;
}

Result<std::unique_ptr<GpuCodec>> GpuCodec::Open(const Gpus& gpus, std::uint32_t ctas) {
  std::unique_ptr<GpuCodec> codec(new GpuCodec(gpus, ctas));
  codec->each_.reserve(gpus.count());
  for (const PrimaryContext& context : gpus.contexts()) {
    if (Status opened = codec->OpenOn(context); !opened) return opened.error();
  }
  return codec;
}

Status GpuCodec::OpenOn(const PrimaryContext& context) {
  OnGpu gpu;
  gpu.context = context.get().context;
  auto module = LoadModule(context, KernelImage());
  if (!module) {
    if (HasKernels()) return module.error();
    return Error(Code::kUnavailable,
                 fmt::format("{} ({})", kNoKernelsRemedy, module.error().text()));
  }
  gpu.module = std::move(*module);
  for (const NamedKernel& each : kNamedKernels) {
    const auto encode =
        FindKernel(gpu.module, fmt::format("headrace_encode_{}", each.name).c_str());
    if (!encode) return encode.error();
    const auto decode =
        FindKernel(gpu.module, fmt::format("headrace_decode_{}", each.name).c_str());
    if (!decode) return decode.error();
    gpu.encodes[each.kind] = *encode;
    gpu.decodes[each.kind] = *decode;
  }
  const std::pair<const char*, CuFunction*> others[] = {
      {"headrace_add_residual", &gpu.add_residual},
      {"headrace_factor_add", &gpu.factor_add},
      {"headrace_left_factor", &gpu.left_factor},
      {"headrace_right_factor", &gpu.right_factor},
      {"headrace_factor_product", &gpu.factor_product}};
  for (const auto& [name, place] : others) {
    const auto found = FindKernel(gpu.module, name);
    if (!found) return found.error();
    *place = *found;
  }
  auto queue = StreamQueue::Open(context);
  if (!queue) return queue.error();
  gpu.queue = std::move(*queue);
  each_.push_back(std::move(gpu));
  return {};
}

GpuCodec::~GpuCodec() { Wait(); }

void GpuCodec::Wait() {
  for (const OnGpu& gpu : each_) {
    const CurrentContext current(gpus_.driver(), gpu.context);
    // Its answer is of no use any more: nobody is left to receive it.
    (void)gpus_.driver().call().stream_synchronize(gpu.queue.stream());
  }
}

GpuCodec::OnGpu& GpuCodec::At(std::int8_t device) {
  HR_CHECK(device >= 0 && static_cast<std::size_t>(device) < each_.size(), device);
  return each_[static_cast<std::size_t>(device)];
}

const GpuCodec::OnGpu& GpuCodec::At(std::int8_t device) const {
  HR_CHECK(device >= 0 && static_cast<std::size_t>(device) < each_.size(), device);
  return each_[static_cast<std::size_t>(device)];
}

bool GpuCodec::HasRoom(std::int8_t device) const {
  return At(device).launches_under_way < kLaunchesMax;
}

Status GpuCodec::Encode(std::int8_t device, const EncodedRange& from, std::byte* out) {
  OnGpu& gpu = At(device);
  HR_CHECK(HasBlocks(from.codec) && from.range.begin % kCodecBlock == 0, from.range.begin);
  const CurrentContext current(gpus_.driver(), gpu.context);
  encode_.out = out;
  encode_.residual = from.residual;
  encode_.seed = from.seed;
  encode_.kept = from.codec.parameter;
  return LaunchEncode(gpu, gpu.encodes[from.codec.kind], EncodedBlockSize(from.codec), from);
}

Status GpuCodec::AddResidual(std::int8_t device, const EncodedRange& range) {
  OnGpu& gpu = At(device);
  HR_CHECK(range.residual != nullptr && range.range.begin % kCodecBlock == 0, range.range.begin);
  const CurrentContext current(gpus_.driver(), gpu.context);
  encode_.out = nullptr;
  encode_.residual = range.residual;
  return LaunchEncode(gpu, gpu.add_residual, 0, range);
}

// Launches of as many blocks each as have few enough stretches of residuals.
Status GpuCodec::LaunchEncode(OnGpu& gpu, CuFunction kernel, std::size_t block_size,
                              const EncodedRange& from) {
  const std::uint64_t end = from.range.begin + from.range.count;
  float* const values = ValuesOf(from);
  RunWalk residual_walk = from.residual == nullptr ? from.walk : from.residual_walk;
  for (std::uint64_t begin = from.range.begin; begin < end;) {
    const std::uint64_t first_block = begin / kCodecBlock;
    residual_walk.Seek(begin);
    RunWalk ahead = residual_walk;
    encode_.stretches_count = 0;
    std::uint64_t at = begin;
    while (at < end && encode_.stretches_count < kResidualStretchesMax) {
      encode_.begins[encode_.stretches_count] = static_cast<std::uint32_t>(at - begin);
      encode_.offsets[encode_.stretches_count] = ahead.OffsetOf(at);
      ++encode_.stretches_count;
      at = std::min(end, ahead.stretch().end);
      ahead.Next();
    }
    // Whole blocks; the others have their stretches in the next launch.
    const std::uint64_t until = at == end ? end : at / kCodecBlock * kCodecBlock;
    HR_CHECK(until > begin && until - begin <= std::numeric_limits<std::uint32_t>::max(), begin,
             until);
    while (encode_.begins[encode_.stretches_count - 1] >= until - begin) --encode_.stretches_count;
    encode_.values = values + (begin - from.range.begin);
    encode_.count = static_cast<std::uint32_t>(until - begin);
    encode_.first_block = first_block;
    if (Status done = Launch(gpu, kernel, &encode_, encode_.count); !done) return done;
    encode_.out += (until - begin) / kCodecBlock * block_size;
    begin = until;
  }
  return {};
}

Status GpuCodec::DecodeSum(std::int8_t device, std::span<const std::byte* const> inputs, bool onto,
                           std::uint32_t divisor, const EncodedRange& to) {
  OnGpu& gpu = At(device);
  HR_CHECK(HasBlocks(to.codec) && divisor != 0 && !inputs.empty(), divisor, inputs.size());
  HR_CHECK(inputs.size() <= kCodecInputsMax && to.range.begin % kCodecBlock == 0, inputs.size());
  const CurrentContext current(gpus_.driver(), gpu.context);
  std::ranges::copy(inputs, decode_.inputs);
  decode_.inputs_count = static_cast<std::uint32_t>(inputs.size());
  decode_.out = ValuesOf(to);
  decode_.seed = to.seed;
  decode_.first_block = to.range.begin / kCodecBlock;
  decode_.count = static_cast<std::uint32_t>(to.range.count);
  decode_.kept = to.codec.parameter;
  decode_.divisor = static_cast<float>(divisor);
  decode_.onto = onto;
  return Launch(gpu, gpu.decodes[to.codec.kind], &decode_, decode_.count);
}

// By one block of threads, whose warps meet between its steps.
Status GpuCodec::EncodeLossless(std::int8_t device, const EncodedRange& from, bool as_it_is,
                                std::byte* out, std::uint32_t* table) {
  OnGpu& gpu = At(device);
  const CurrentContext current(gpus_.driver(), gpu.context);
  LosslessEncodeWork work{.values = ValuesOf(from),
                          .out = out,
                          .table = table,
                          .count = static_cast<std::uint32_t>(from.range.count),
                          .as_it_is = as_it_is};
  return LaunchOn(gpu, gpu.encodes[Codec::kLossless], &work, 1);
}

Status GpuCodec::DecodeLossless(std::int8_t device, std::span<const LosslessMessage> messages,
                                std::size_t own, std::uint32_t divisor, const EncodedRange& to) {
  OnGpu& gpu = At(device);
  HR_CHECK(divisor != 0 && !messages.empty() && messages.size() <= kCodecInputsMax, divisor,
           messages.size());
  const CurrentContext current(gpus_.driver(), gpu.context);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    decode_lossless_.inputs[i] = {.in = messages[i].in, .table = messages[i].table};
  }
  decode_lossless_.out = ValuesOf(to);
  decode_lossless_.inputs_count = static_cast<std::uint32_t>(messages.size());
  decode_lossless_.own = static_cast<std::uint32_t>(std::min(own, messages.size() + 1));
  decode_lossless_.count = static_cast<std::uint32_t>(to.range.count);
  decode_lossless_.divisor = static_cast<float>(divisor);
  return Launch(gpu, gpu.decodes[Codec::kLossless], &decode_lossless_, decode_lossless_.count);
}

Status GpuCodec::MakeLeftFactor(std::int8_t device, const DeviceMatrix& matrix) {
  OnGpu& gpu = At(device);
  const CurrentContext current(gpus_.driver(), gpu.context);
  const FactorWork work = WorkOf(matrix);
  const std::uint64_t left = matrix.LeftCount();
  if (work.residual != nullptr) {
    Status done = LaunchFactor(gpu, gpu.factor_add, work, FactorAddItems(work));
    if (!done) return done;
  }
  if (Status done = CopyFactor(gpu, matrix.on_host + left, work.q, matrix.RightCount()); !done) {
    return done;
  }
  if (Status done = LaunchFactor(gpu, gpu.left_factor, work, LeftFactorItems(work)); !done) {
    return done;
  }
  return CopyFactor(gpu, work.p, matrix.on_host, left);
}

Status GpuCodec::MakeRightFactor(std::int8_t device, const DeviceMatrix& matrix,
                                 const RowRange& rows) {
  OnGpu& gpu = At(device);
  HR_CHECK(rows.begin < rows.end && rows.end <= matrix.rows.rows, rows.begin, rows.end);
  const CurrentContext current(gpus_.driver(), gpu.context);
  FactorWork work = WorkOf(matrix);
  work.rows_begin = rows.begin;
  work.rows_end = rows.end;
  const std::uint64_t own_at = matrix.LeftCount() + matrix.RightCount();
  work.q = matrix.factors + own_at;
  if (rows.begin == 0) {
    Status done = CopyFactor(gpu, matrix.on_host, work.p, matrix.LeftCount());
    if (!done) return done;
  }
  if (Status done = LaunchFactor(gpu, gpu.right_factor, work, RightFactorItems(work)); !done) {
    return done;
  }
  if (rows.end < matrix.rows.rows) return {};
  return CopyFactor(gpu, work.q, matrix.on_host + own_at, matrix.RightCount());
}

// The GPU has the others yet, from the step before.
Status GpuCodec::WriteProduct(std::int8_t device, const DeviceMatrix& matrix, std::uint32_t divisor,
                              bool is_finite) {
  OnGpu& gpu = At(device);
  HR_CHECK(divisor != 0);
  const CurrentContext current(gpus_.driver(), gpu.context);
  FactorWork work = WorkOf(matrix);
  work.divisor = static_cast<float>(divisor);
  work.is_finite = is_finite;
  const float* const summed = matrix.on_host + matrix.LeftCount();
  if (Status done = CopyFactor(gpu, summed, work.q, matrix.RightCount()); !done) return done;
  return LaunchFactor(gpu, gpu.factor_product, work, FactorProductItems(work));
}

Status GpuCodec::LaunchFactor(OnGpu& gpu, CuFunction kernel, FactorWork work, std::uint64_t items) {
  const auto grid = std::min<std::uint64_t>((items + kWarps - 1) / kWarps, ctas_);
  return LaunchOn(gpu, kernel, &work, static_cast<std::uint32_t>(grid));
}

Status GpuCodec::CopyFactor(OnGpu& gpu, const float* from, float* to, std::uint64_t count) {
  if (gpu.error) return Refuse(gpu, *gpu.error);
  const CuResult result = gpus_.driver().call().memcpy_async(
      AddressOf(to), AddressOf(from), count * sizeof(float), gpu.queue.stream());
  if (result != CuResult::kSuccess) {
    return Refuse(gpu, FailedOnGpu(gpus_.driver(), result, "copy a factor of a matrix"));
  }
  ++gpu.launches;
  ++gpu.launches_under_way;
  return {};
}

Status GpuCodec::Launch(OnGpu& gpu, CuFunction kernel, void* work, std::uint32_t count) {
  const std::uint32_t blocks = static_cast<std::uint32_t>(CodecBlocks(count));
  return LaunchOn(gpu, kernel, work,
                  std::clamp<std::uint32_t>((blocks + kWarps - 1) / kWarps, 1, ctas_));
}

Status GpuCodec::LaunchOn(OnGpu& gpu, CuFunction kernel, void* work, std::uint32_t grid) {
  if (gpu.error) return Refuse(gpu, *gpu.error);
  std::array<void*, 1> parameters = {work};
  const CuResult result = gpus_.driver().call().launch_kernel(
      kernel, grid, 1, 1, kKernelThreads, 1, 1, 0, gpu.queue.stream(), parameters.data(), nullptr);
  if (result != CuResult::kSuccess) {
    return Refuse(gpu, FailedOnGpu(gpus_.driver(), result, "launch a codec's kernel"));
  }
  ++gpu.launches;
  ++gpu.launches_under_way;
  return {};
}

Status GpuCodec::Refuse(OnGpu& gpu, Error why) {
  gpu.was_refused = true;
  return why;
}

std::uint64_t GpuCodec::TicketOf(std::int8_t device) const {
  const OnGpu& gpu = At(device);
  return gpu.launches > 0 ? gpu.batch : gpu.batch - 1;
}

std::optional<Status> GpuCodec::Ended(std::int8_t device, std::uint64_t ticket) const {
  const OnGpu& gpu = At(device);
  HR_CHECK(ticket <= gpu.batch, ticket, gpu.batch);
  if (ticket > gpu.batches_ended) return std::nullopt;
  if (gpu.error) return Status(*gpu.error);
  return Status();
}

bool GpuCodec::Poll() {
  bool any = false;
  for (OnGpu& gpu : each_) {
    // Who waits for it alone waits for what was started before, which may be nothing.
    any = std::exchange(gpu.was_refused, false) || any;
    if (gpu.launches_under_way == 0) continue;
    const CurrentContext current(gpus_.driver(), gpu.context);
    const auto note = [&](Status status) {
      if (!status && !gpu.error) gpu.error = status.error();
    };
    if (gpu.launches > 0 && gpu.queue.HasRoom()) {
      gpu.launches_of[gpu.batch % gpu.launches_of.size()] = gpu.launches;
      note(gpu.queue.EndPiece(static_cast<std::uint32_t>(gpu.batch)));
      gpu.launches = 0;
      ++gpu.batch;
    }
    for (auto ended = gpu.queue.PopEnded(); ended.any; ended = gpu.queue.PopEnded()) {
      ++gpu.batches_ended;
      HR_CHECK(ended.slot == static_cast<std::uint32_t>(gpu.batches_ended), ended.slot);
      gpu.launches_under_way -= gpu.launches_of[gpu.batches_ended % gpu.launches_of.size()];
      if (ended.result != CuResult::kSuccess) {
        note(FailedOnGpu(gpus_.driver(), ended.result, "encode or decode"));
      }
      any = true;
    }
  }
  return any;
}

}  // namespace headrace::transport
