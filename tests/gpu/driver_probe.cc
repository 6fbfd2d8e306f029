// Which calls of CUDA's driver a busy GPU holds up: while a kernel spins, or a stream waits for a
// word, or both, another thread makes one call at a time, and it is seen how long that takes. What
// is held up is let go after a limit, by ending what the GPU was busy with. A service that makes
// such a call on the thread whose work the kernel waits for never gets further.
//
// usage: driver_probe [LIMIT_MS]
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/gpu/figures.h"
#include "tests/support/cuda_double/cuda_double.h"
#include "tests/support/device_memory.h"
#include "transport/memory/device_arena.h"
#include "transport/memory/gpus.h"
#include "transport/memory/pinned_memory.h"

namespace headrace::gpu {
namespace {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace): what is probed

constexpr std::size_t kSize = std::size_t{2} << 20;
constexpr long kLimitMs = 1500;
constexpr const char* kSpinKernel = "headrace_spin";
// Spins until the word has reached a value, or for 10 s, so that nothing stays that way for ever.
constexpr const char* kSpinCode = R"(//
.version 7.0
.target sm_80
.address_size 64
.visible .entry headrace_spin(.param .u64 flag, .param .u64 value) {
  .reg .u64 %address, %wanted, %word, %now, %end;
  .reg .pred %go;
  ld.param.u64 %address, [flag];
  ld.param.u64 %wanted, [value];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %now, 10000000000;
again:
  ld.volatile.u64 %word, [%address];
  setp.ge.u64 %go, %word, %wanted;
  @%go bra done;
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %go, %now, %end;
  @%go bra again;
done:
  ret;
}
)";

std::string Library() {
  const char* const named = std::getenv("HEADRACE_CUDA_LIBRARY");
  return named != nullptr ? named : std::string(kCudaLibrary);
}

// The same for the double of the driver, which runs no PTX.
void SpinOnHost(const CudaDoubleLaunch* launch) {
  auto* const word = *static_cast<std::uint64_t**>(launch->parameters[0]);
  const auto wanted = *static_cast<const std::uint64_t*>(launch->parameters[1]);
  while (std::atomic_ref(*word) < wanted) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void PlayOnDouble() {
  void* const library = ::dlopen(Library().c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  const transport::Library closes(library);
  void* const symbol = ::dlsym(library, "headrace_cuda_double_kernel");
  if (symbol == nullptr) return;
  const std::array<std::size_t, 2> sizes = {sizeof(std::uint64_t), sizeof(std::uint64_t)};
  reinterpret_cast<decltype(&headrace_cuda_double_kernel)>(symbol)(kSpinKernel, &SpinOnHost,
                                                                   sizes.data(), sizes.size());
}

enum class Busy : std::uint8_t { kKernel, kWord, kBoth };
constexpr std::array kAllBusy = {Busy::kKernel, Busy::kWord, Busy::kBoth};

std::string_view Name(Busy busy) {
  switch (busy) {
    case Busy::kKernel:
      return "a kernel spins";
    case Busy::kWord:
      return "a stream waits for a word";
    case Busy::kBoth:
      return "both";
  }
  return "";
}

// A call, what must be there for it, and what takes back what was made. All in the context.
struct Call {
  std::string name;
  std::function<CuResult()> prepare = [] { return CuResult::kSuccess; };
  std::function<CuResult()> make;
  std::function<CuResult()> undo = [] { return CuResult::kSuccess; };
};

// On the first GPU: what keeps it busy, and the calls.
class Probe {
 public:
  static Result<Probe> Open(const CuIpcHandle& handle, TimeNs limit_ns) {
    auto gpus = Gpus::Open(Library());
    if (!gpus) return gpus.error();
    PlayOnDouble();
    Probe probe(std::move(*gpus), handle, limit_ns);
    if (auto done = probe.Prepare(); !done) return done.error();
    return probe;
  }

  const CudaDevice& device() const { return gpus_->devices()[0]; }

  // Microseconds that the call took; none: it was held up until the limit. Errors name it.
  Result<std::optional<double>> Measure(const Call& call, Busy busy) {
    if (auto done = InContext(call.prepare, "prepare " + call.name); !done) return done.error();
    if (auto done = MakeBusy(busy); !done) return done.error();
    std::promise<double> took;
    std::future<double> taken = took.get_future();
    Status made;
    std::thread other([&] {
      const CurrentContext current = In();
      const TimeNs begin = MonotonicNow();
      const CuResult result = call.make();
      const TimeNs end = MonotonicNow();
      made = driver().Check(result, call.name);
      took.set_value(static_cast<double>(end - begin) / 1e3);
    });
    const bool in_time =
        taken.wait_for(std::chrono::nanoseconds(limit_ns_)) == std::future_status::ready;
    LetGo();
    other.join();
    if (auto done = Settle(); !done) return done.error();
    if (!made) return made.error();
    if (auto done = InContext(call.undo, "take back " + call.name); !done) return done.error();
    return in_time ? std::optional(taken.get()) : std::nullopt;
  }

  std::vector<Call> Calls();

 private:
  Probe(std::unique_ptr<Gpus> gpus, const CuIpcHandle& handle, TimeNs limit_ns)
      : gpus_(std::move(gpus)), handle_(handle), limit_ns_(limit_ns) {}

  const CudaDriver& driver() const { return gpus_->driver(); }
  const CudaFunctions& call() const { return driver().call(); }
  const PrimaryContext& context() const { return gpus_->contexts()[0]; }
  CurrentContext In() const { return {driver(), context().get().context}; }
  Status InContext(const std::function<CuResult()>& make, const std::string& doing) const {
    const CurrentContext current = In();
    return driver().Check(make(), doing);
  }

  Status Prepare();
  Status MakeBusy(Busy busy);
  void LetGo() {
    Flag() = round_;
    Word() = round_;
  }
  Status Settle() const;
  Status Spin(CuStream stream, std::uint64_t until) const;
  std::atomic_ref<std::uint64_t> Flag() const { return At(0); }
  std::atomic_ref<std::uint64_t> Word() const { return At(kPageSize); }
  std::atomic_ref<std::uint64_t> At(std::size_t offset) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(flag_.data() + offset));
  }

  // A page of its own for the words that streams await; the kernel's flag stands on the other.
  static constexpr std::size_t kPageSize = 4096;

  std::unique_ptr<Gpus> gpus_;
  CuIpcHandle handle_;
  TimeNs limit_ns_;
  std::uint64_t round_ = 0;
  PinnedMemory flag_;
  Mapping unpinned_;
  CudaModule module_;
  CuFunction spin_ = nullptr;
  CudaStream spinning_;
  CudaStream waiting_;
  CudaStream free_;
  CudaEvent behind_;  // what spins
  VmmMemory memory_;
  Reservation reservation_;
  // What a call made.
  CuAddress address_ = 0;
  CuStream made_stream_ = nullptr;
  CuEvent made_event_ = nullptr;
};

Status Probe::Prepare() {
  auto flag = PinnedMemory::Allocate(*gpus_, 2 * kPageSize);
  if (!flag) return flag.error();
  flag_ = std::move(*flag);
  auto pages = Mapping::Anonymous(kSize);
  if (!pages) return pages.error();
  unpinned_ = std::move(*pages);
  auto module = LoadModule(context(), kSpinCode);
  if (!module) return module.error();
  module_ = std::move(*module);
  const auto spin = FindKernel(module_, kSpinKernel);
  if (!spin) return spin.error();
  spin_ = *spin;
  for (CudaStream* const stream : {&spinning_, &waiting_, &free_}) {
    auto made = CreateStream(context(), kCuStreamNonBlocking, 0);
    if (!made) return made.error();
    *stream = std::move(*made);
  }
  auto event = CreateEvent(context());
  if (!event) return event.error();
  behind_ = std::move(*event);
  CuMemory memory = 0;
  const CuAllocationProperties properties = ExportableMemoryOn(0);
  auto done = driver().Check(call().mem_create(&memory, kSize, &properties, 0), "create memory");
  if (!done) return done;
  memory_ = VmmMemory({&driver(), memory});
  auto reservation = ReserveAddresses(driver(), kSize);
  if (!reservation) return reservation.error();
  reservation_ = std::move(*reservation);
  return {};
}

Status Probe::Spin(CuStream stream, std::uint64_t until) const {
  auto flag = reinterpret_cast<std::uint64_t>(flag_.on_gpus());
  std::array<void*, 2> parameters = {&flag, &until};
  return driver().Check(
      call().launch_kernel(spin_, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr),
      "launch a kernel that spins");
}

Status Probe::MakeBusy(Busy busy) {
  ++round_;
  const CurrentContext current = In();
  if (busy != Busy::kWord) {
    if (auto done = Spin(spinning_.get().thing, round_); !done) return done;
  }
  auto done = driver().Check(call().event_record(behind_.get().thing, spinning_.get().thing),
                             "mark what spins");
  if (!done || busy == Busy::kKernel) return done;
  const auto word = reinterpret_cast<CuAddress>(flag_.on_gpus() + kPageSize);
  return driver().Check(
      call().stream_wait_value(waiting_.get().thing, word, round_, kCuWaitGreaterOrEqual),
      "let a stream wait for a word");
}

Status Probe::Settle() const {
  const CurrentContext current = In();
  return driver().Check(call().ctx_synchronize(), "wait for the GPU");
}

std::vector<Call> Probe::Calls() {
  const auto map = [this] {
    return call().mem_map(reservation_.get().address, kSize, 0, memory_.get().memory, 0);
  };
  const auto unmap = [this] { return call().mem_unmap(reservation_.get().address, kSize); };
  const auto allow = [this] {
    const CuAccessDescription access{{CuLocationType::kDevice, 0}, CuAccess::kReadWrite};
    return call().mem_set_access(reservation_.get().address, kSize, &access, 1);
  };
  const auto pin = [this] {
    return call().mem_host_register(unpinned_.data(), kSize,
                                    kCuHostRegisterPortable | kCuHostRegisterDeviceMap);
  };
  const auto unpin = [this] { return call().mem_host_unregister(unpinned_.data()); };
  const auto allocate = [this] { return call().mem_alloc(&address_, kSize); };
  const auto free = [this] { return call().mem_free(address_); };
  const auto open = [this] {
    return call().ipc_open_mem_handle(&address_, handle_, kCuIpcLazyEnablePeerAccess);
  };
  const auto close = [this] { return call().ipc_close_mem_handle(address_); };
  const auto map_and_allow = [map, allow] {
    const CuResult mapped = map();
    return mapped == CuResult::kSuccess ? allow() : mapped;
  };
  const auto launch = [this] {
    std::uint64_t flag = reinterpret_cast<std::uint64_t>(flag_.on_gpus());
    std::uint64_t until = 0;
    std::array<void*, 2> parameters = {&flag, &until};
    return call().launch_kernel(spin_, 1, 1, 1, 1, 1, 1, 0, free_.get().thing, parameters.data(),
                                nullptr);
  };
  const auto query = [this] {
    const CuResult result = call().event_query(behind_.get().thing);
    return result == CuResult::kNotReady ? CuResult::kSuccess : result;
  };
  const auto make_stream = [this] {
    return call().stream_create(&made_stream_, kCuStreamNonBlocking, 0);
  };
  const auto drop_stream = [this] { return call().stream_destroy(made_stream_); };
  const auto make_event = [this] {
    return call().event_create(&made_event_, kCuEventDisableTiming);
  };
  const auto drop_event = [this] { return call().event_destroy(made_event_); };
  return {{.name = "cuMemSetAccess", .prepare = map, .make = allow, .undo = unmap},
          {.name = "cuMemUnmap", .prepare = map_and_allow, .make = unmap},
          {.name = "cuMemHostRegister", .make = pin, .undo = unpin},
          {.name = "cuMemHostUnregister", .prepare = pin, .make = unpin},
          {.name = "cuMemAlloc", .make = allocate, .undo = free},
          {.name = "cuMemFree", .prepare = allocate, .make = free},
          {.name = "cuIpcOpenMemHandle", .make = open, .undo = close},
          {.name = "cuIpcCloseMemHandle", .prepare = open, .make = close},
          {.name = "cuStreamCreate", .make = make_stream, .undo = drop_stream},
          {.name = "cuEventCreate", .make = make_event, .undo = drop_event},
          {.name = "cuLaunchKernel", .make = launch},
          {.name = "cuEventQuery", .make = query}};
}

// The other process: allocates memory, writes its handle, and holds it until the pipe ends.
int Export(int handles, int end) {
  const auto gpus = Gpus::Open(Library());
  if (!gpus) return 1;
  const auto memory = AllocateDeviceMemory((*gpus)->contexts()[0], kSize);
  if (!memory) return 1;
  CuIpcHandle handle{};
  {
    const CurrentContext current((*gpus)->driver(), (*gpus)->contexts()[0].get().context);
    const CuResult made = (*gpus)->driver().call().ipc_get_mem_handle(&handle, memory->get().thing);
    if (made != CuResult::kSuccess) return 1;
  }
  if (write(handles, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle)) return 1;
  char nothing = 0;
  return read(end, &nothing, 1) == 0 ? 0 : 1;
}

int MeasureAll(const CuIpcHandle& handle, TimeNs limit_ns) {
  auto probe = Probe::Open(handle, limit_ns);
  if (!probe) return Skip(probe.error().text());
  std::string table = fmt::format("\n{:<22}{:>16}{:>28}{:>16}\n", "us beside a GPU where",
                                  Name(Busy::kKernel), Name(Busy::kWord), Name(Busy::kBoth));
  int status = 0;
  for (const Call& call : probe->Calls()) {
    std::vector<std::string> cells;
    for (const Busy busy : kAllBusy) {
      const auto took = probe->Measure(call, busy);
      if (!took) {
        // The others' answers are worth having all the same.
        fmt::print(stderr, "driver_probe: {}\n", took.error().text());
        cells.emplace_back("failed");
        status = 1;
        continue;
      }
      cells.push_back(*took ? fmt::format("{:.0f}", **took) : "held up");
      const double us = *took ? **took : static_cast<double>(limit_ns) / 1e3;
      PrintFigure(fmt::format("{} while {}{}", call.name, Name(busy), *took ? "" : ", held up"), us,
                  "us", "");
    }
    table += fmt::format("{:<22}{:>16}{:>28}{:>16}\n", call.name, cells[0], cells[1], cells[2]);
  }
  fmt::print("{}on {}; \"held up\": until that ended, which was after {} ms\n", table,
             probe->device().name, limit_ns / kMillisecond);
  return status;
}

int Main(TimeNs limit_ns) {
  int handles[2];
  int ends[2];
  if (pipe(handles) != 0 || pipe(ends) != 0) return 1;
  // Before either process has a driver: one does not survive a fork.
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    close(handles[0]);
    close(ends[1]);
    _exit(Export(handles[1], ends[0]));
  }
  close(handles[1]);
  close(ends[0]);
  CuIpcHandle handle{};
  const bool came = read(handles[0], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
  const int status = came ? MeasureAll(handle, limit_ns)
                          : Skip("no GPU from which another process could share memory");
  close(ends[1]);
  waitpid(child, nullptr, 0);
  return status;
}

}  // namespace
}  // namespace headrace::gpu

int main(int argc, char** argv) {
  const long limit_ms = argc > 1 ? std::atol(argv[1]) : headrace::gpu::kLimitMs;
  if (argc > 2 || limit_ms < 1 || limit_ms > headrace::gpu::kLimitMs) {
    fmt::print(stderr, "usage: driver_probe [LIMIT_MS], {} at most\n", headrace::gpu::kLimitMs);
    return 2;
  }
  return headrace::gpu::Main(limit_ms * headrace::kMillisecond);
}
