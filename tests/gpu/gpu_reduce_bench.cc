// How far averages of memory on one GPU are from what its memory allows: reductions of 2 to 8
// buffers beside a plain device copy of the same run, in bytes read and written a second.
//
// usage: gpu_reduce_bench [MIB [ROUNDS]]
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "tests/gpu/figures.h"
#include "tests/support/device_memory.h"
#include "transport/memory/gpus.h"
#include "transport/nvlink/nvlink_transport.h"

namespace headrace::gpu {
namespace {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace): what is measured

constexpr std::uint32_t kBuffersMax = 8;
constexpr int kAtATime = 8;            // transfers posted together, so that starts are hidden
constexpr double kGoal = 85;           // per cent of the copy
constexpr unsigned char kFill = 0x3E;  // every byte, which makes 0.1858 a float32

std::string Library() {
  const char* const named = std::getenv("HEADRACE_CUDA_LIBRARY");
  return named != nullptr ? named : std::string(kCudaLibrary);
}

// Averages, and of two buffers the sum beside it.
constexpr std::pair<std::uint32_t, Reduction> kCases[] = {{2, Reduction::kSum},
                                                          {2, Reduction::kAverage},
                                                          {3, Reduction::kAverage},
                                                          {4, Reduction::kAverage},
                                                          {8, Reduction::kAverage}};

struct Case {
  std::uint32_t buffers;
  DType dtype;
  Collective kind;
  Reduction reduction;  // gradients are averages

  std::string Text() const {
    return fmt::format("{} ({}) of {} {} buffers", Name(kind), Name(reduction), buffers,
                       Name(dtype));
  }
  // Times a buffer is read or written.
  double Passes() const { return kind == Collective::kReduce ? buffers + 1.0 : 2.0 * buffers; }
};

// All on the first GPU, with one launch for a transfer.
class Bench {
 public:
  static Result<Bench> Open(std::size_t size) {
    Bench bench(size);
    auto gpus = Gpus::Open(Library());
    if (!gpus) return gpus.error();
    bench.gpus_ = std::move(*gpus);
    const PrimaryContext& context = bench.gpus_->contexts()[0];
    for (std::uint32_t i = 0; i < kBuffersMax; ++i) {
      auto memory = AllocateDeviceMemory(context, size);
      if (!memory) return memory.error();
      bench.buffers_.push_back(std::move(*memory));
    }
    auto stream = CreateStream(context, kCuStreamNonBlocking, 0);
    if (!stream) return stream.error();
    bench.stream_ = std::move(*stream);
    return bench;
  }

  const CudaDevice& device() const { return gpus_->devices()[0]; }

  Status Use(std::uint32_t ctas) {
    lane_.reset();
    auto lane = NvlinkTransport::Open(*gpus_, {.ctas = ctas, .piece_size = kNvlinkPieceSizeMax});
    if (!lane) return lane.error();
    lane_ = std::move(*lane);
    return {};
  }

  // Bytes a second, read and written.
  Result<double> Copy() const {
    const CurrentContext current(gpus_->driver(), context());
    const TimeNs begin = MonotonicNow();
    for (int i = 0; i < kAtATime; ++i) {
      auto done = Check(call().memcpy_async(At(1), At(0), size_, stream_.get().thing), "copy");
      if (!done) return done.error();
    }
    auto done = Check(call().stream_synchronize(stream_.get().thing), "copy");
    if (!done) return done.error();
    return Rate(2, MonotonicNow() - begin);
  }

  Result<double> Reduce(const Case& test) {
    if (auto done = Fill(); !done) return done.error();
    if (auto done = Sum(test, 1); !done) return done.error();
    if (auto done = CheckSum(test); !done) return done.error();
    if (auto done = Fill(); !done) return done.error();
    const TimeNs begin = MonotonicNow();
    // They share memory, which is safe on one GPU: its sums are one stream's.
    if (auto done = Sum(test, kAtATime); !done) return done.error();
    return Rate(test.Passes(), MonotonicNow() - begin);
  }

 private:
  explicit Bench(std::size_t size) : size_(size) {}
  const CudaFunctions& call() const { return gpus_->driver().call(); }
  CuContext context() const { return gpus_->contexts()[0].get().context; }
  CuAddress At(std::size_t buffer) const { return buffers_[buffer].get().thing; }
  Status Check(CuResult result, std::string_view doing) const {
    return gpus_->driver().Check(result, doing);
  }
  double Rate(double passes, TimeNs took) const {
    return passes * kAtATime * static_cast<double>(size_) / (static_cast<double>(took) / 1e9);
  }

  Status Fill() const {
    const CurrentContext current(gpus_->driver(), context());
    for (std::uint32_t i = 0; i < kBuffersMax; ++i) {
      auto done = Check(call().memset_async(At(i), kFill, size_, stream_.get().thing), "fill");
      if (!done) return done;
    }
    return Check(call().stream_synchronize(stream_.get().thing), "fill");
  }

  Status Sum(const Case& test, int transfers) {
    Transfer transfer{.kind = test.kind, .dtype = test.dtype, .reduction = test.reduction};
    transfer.count = size_ / SizeOf(test.dtype);
    transfer.members_count = test.buffers;
    for (std::uint32_t i = 0; i < test.buffers; ++i) {
      transfer.members[i] = reinterpret_cast<std::byte*>(At(i));
      transfer.devices[i] = 0;
    }
    transfer.output = transfer.members[0];
    for (int i = 0; i < transfers; ++i) {
      transfer.token = static_cast<std::uint64_t>(i);
      HR_CHECK(lane_->Post(transfer, MonotonicNow()) == PostResult::kAccepted, i);
    }
    std::vector<Completion> completions;
    while (completions.size() < static_cast<std::size_t>(transfers)) {
      lane_->DoWork(MonotonicNow(), completions);
    }
    for (const Completion& completion : completions) {
      if (completion.code != Code::kOk) return Error(completion.code, completion.cause);
    }
    return {};
  }

  // The first and the last float32, after one sum of equal buffers.
  Status CheckSum(const Case& test) const {
    if (test.dtype != DType::kFloat32) return {};
    float one = 0;
    std::memset(&one, kFill, sizeof one);
    float expected = one;
    for (std::uint32_t i = 1; i < test.buffers; ++i) expected += one;
    if (test.reduction == Reduction::kAverage) expected /= static_cast<float>(test.buffers);
    const CurrentContext current(gpus_->driver(), context());
    for (const std::size_t at : {std::size_t{0}, size_ - sizeof(float)}) {
      float got = 0;
      auto done = Check(call().memcpy_to_host(&got, At(0) + at, sizeof got), "read a sum");
      if (!done) return done;
      if (got == expected) continue;
      return Error(Code::kInternal,
                   fmt::format("{}: {} at byte {}, {} is right", test.Text(), got, at, expected));
    }
    return {};
  }

  std::size_t size_;
  std::unique_ptr<Gpus> gpus_;
  std::vector<DeviceMemory> buffers_;
  CudaStream stream_;
  std::unique_ptr<NvlinkTransport> lane_;
};

// The median over rounds of the sum's rate as a share of the copy's beside it.
Status Measure(Bench& bench, const Case& test, int rounds, const std::string& where,
               const std::string& goal) {
  std::vector<double> shares;
  std::vector<double> rates;
  for (int round = 0; round < rounds; ++round) {
    const auto copied = bench.Copy();
    if (!copied) return copied.error();
    const auto reduced = bench.Reduce(test);
    if (!reduced) return reduced.error();
    shares.push_back(100 * *reduced / *copied);
    rates.push_back(*reduced / 1e9);
  }
  PrintFigure(fmt::format("{} {}", test.Text(), where), Median(rates), "GB/s", "");
  PrintFigure(fmt::format("{} {}, of a copy's rate", test.Text(), where), Median(shares), "%",
              goal);
  return {};
}

Status MeasureAll(Bench& bench, std::size_t size, int rounds) {
  const auto whole = static_cast<std::uint32_t>(2 * bench.device().multiprocessors_count);
  const std::uint32_t few = NvlinkOptions().ctas;
  std::vector<double> copies;
  for (int round = 0; round < rounds; ++round) {
    const auto rate = bench.Copy();
    if (!rate) return rate.error();
    copies.push_back(*rate / 1e9);
  }
  PrintFigure(fmt::format("device copy of {} MiB on {}", size >> 20, bench.device().name),
              Median(copies), "GB/s", "");
  for (const std::uint32_t ctas : {std::min(whole, kNvlinkCtasMax), few}) {
    if (auto done = bench.Use(ctas); !done) return done;
    for (const Collective kind : {Collective::kReduce, Collective::kAllReduce}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        // Averages of 2, 4 and 8 are multiplied by an inverse, those of 3 are divided.
        for (const auto& [buffers, reduction] : kCases) {
          const bool has_goal = ctas != few && kind == Collective::kReduce && buffers != 3;
          auto done =
              Measure(bench, {buffers, dtype, kind, reduction}, rounds,
                      fmt::format("by {} CTAs", ctas), has_goal ? fmt::format(">= {}", kGoal) : "");
          if (!done) return done;
        }
      }
    }
  }
  return {};
}

int Main(std::size_t size, int rounds) {
  auto bench = Bench::Open(size);
  if (!bench) {
    const bool absent =
        bench.error().code() == Code::kNotFound || bench.error().code() == Code::kUnavailable;
    if (absent) return Skip(bench.error().text());
    fmt::print(stderr, "gpu_reduce_bench: {}\n", bench.error().text());
    return 1;
  }
  const auto done = MeasureAll(*bench, size, rounds);
  if (done) return 0;
  fmt::print(stderr, "gpu_reduce_bench: {}\n", done.error().text());
  return 1;
}

}  // namespace
}  // namespace headrace::gpu

int main(int argc, char** argv) {
  const long mib = argc > 1 ? std::atol(argv[1]) : 256;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  if (argc > 3 || mib < 1 || mib > 1024 || rounds < 1) {
    fmt::print(stderr, "usage: gpu_reduce_bench [MIB [ROUNDS]]\n");
    return 2;
  }
  return headrace::gpu::Main(static_cast<std::size_t>(mib) << 20, rounds);
}
