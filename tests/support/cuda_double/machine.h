// What the double plays: GPUs, their memory, and what this process holds of them. One for a
// process, as a driver has it; guarded by one mutex. All memory lies in memfds, whose names say
// which machine and GPU they belong to, so that processes can hand it to each other and the kernel
// frees it.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/fd.h"
#include "tests/support/cuda_double/cuda_double.h"
#include "transport/memory/cuda_abi.h"

namespace headrace::cuda_double {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace): the interface we play

inline constexpr int kDevicesMax = 16;
inline constexpr std::size_t kQueuesMax = 32;  // CUDA_DEVICE_MAX_CONNECTIONS
// Maximum number of resident threads per SM (CUDA Programming Guide, Compute Capabilities).
inline constexpr std::uint64_t kThreadsResident = 2048;
inline constexpr std::size_t kGranularity = std::size_t{2} << 20;
inline constexpr std::size_t kPageSize = 4096;

struct Settings {
  int devices_count = 2;
  std::uint64_t memory_size = std::uint64_t{1} << 30;
  int version = 13000;
  std::int64_t pid = 0;
  std::string machine = "0";
  std::string lacks;
  std::string waits;
  std::uint32_t seed = 0;                 // of delays; 0: none
  int multiprocessors = 16;               // of each GPU
  int queues_count = 8;                   // of each GPU, which its streams share
  int multicast_count = 0;                // GPUs that can take part in it, from number 0 on
  std::vector<int> visible;               // ordinal -> number of the GPU in the machine
  std::set<std::pair<int, int>> reaches;  // by number
  bool Lacks(const char* ability) const { return lacks.find(ability) != std::string::npos; }
};
Settings ReadSettings();

struct Memory;

// GPUs whose memory is behind one address (cuMulticastCreate).
struct Team {
  struct Bound {
    int device = 0;
    std::size_t offset = 0;
    std::size_t size = 0;
    std::shared_ptr<Memory> memory;  // owners: see Memory
    Mapping mapped;                  // of those bytes, for kernels
  };
  std::size_t devices_count = 0;
  std::set<int> devices;
  std::vector<Bound> bounds;
};

// Bytes of a GPU, or what stands for those of a team. Owned by handles and by places where it is
// mapped, of this process; other processes hold it by descriptors and mappings of their own.
struct Memory {
  UniqueFd fd;
  std::size_t size = 0;
  int ordinal = 0;
  CuHandleType handle_types = CuHandleType::kNone;
  Mapping block{};               // of cuMemAlloc: all of it, for the host that plays the GPU
  std::size_t used = 0;          // and how much of that has been given out
  std::unique_ptr<Team> team{};  // of a multicast object, which has no bytes of its own
};

enum class PlaceKind : std::uint8_t { kVirtual, kPlain, kLegacy };

// Where memory is mapped.
struct Place {
  PlaceKind kind = PlaceKind::kVirtual;
  std::size_t size = 0;
  std::size_t offset = 0;          // kPlain: in the block that it shares with other allocations
  std::shared_ptr<Memory> memory;  // owners: see Memory
  std::array<CuAccess, kDevicesMax> access{};
  std::uint64_t opens = 0;   // kLegacy: cuIpcOpenMemHandle less cuIpcCloseMemHandle
  std::uint64_t file = 0;    // kLegacy: the inode that was opened
  std::uint64_t number = 0;  // of this process, never given again
};

struct StreamState;
// The end of an operation of a stream, or its begin.
struct Point {
  std::shared_ptr<StreamState> stream;  // owners: the table, its thread, points in it
  std::uint64_t ticket = 0;
  bool at_begin = false;  // passed once the operation has begun
};

// Whether those behind it in a hardware queue may begin once it has begun, or when it is over.
enum class Holds : std::uint8_t { kNothing, kQueue };

struct StreamOperation {
  std::function<CuResult()> run;
  std::vector<Point> after;
  std::uint64_t number = 0;  // in the hardware queue
  Holds holds = Holds::kNothing;
  std::uint64_t threads = 0;  // that a kernel keeps resident while it runs
};

// Operations run in order on a thread of the stream's own, which ends once the stream is closed and
// they are done.
struct StreamState {
  int ordinal = 0;
  std::size_t hardware_queue = 0;
  bool blocking = true;  // keeps order with the default stream
  bool closed = false;
  bool captured = false;   // into a graph
  bool spoiled = false;    // the capture, by a call that it does not allow
  bool abandoned = false;  // its context is gone: waits give up
  std::deque<StreamOperation> queue;
  std::uint64_t posted = 0;
  std::uint64_t begun = 0;
  std::uint64_t done = 0;
};

struct Device {
  std::uint64_t uses = 0;  // of its primary context
  CuContext context = nullptr;
  CuResult sticky = CuResult::kSuccess;  // what broke the context
  std::uint64_t allocated = 0;           // bytes that this process made
  std::weak_ptr<Memory> open_block;      // that small allocations go to
  bool locked = false;                   // by a call that changes or uses its address space
  std::uint64_t resident = 0;            // threads of kernels that run
  // Numbers of the operations that wait in each, in the order of their posts.
  std::array<std::deque<std::uint64_t>, kQueuesMax> queues;
  std::size_t next_queue = 0;
  std::set<int> peers;  // whose contexts this one reaches
  std::shared_ptr<StreamState> default_stream;
  std::vector<std::weak_ptr<StreamState>> started;  // also those that were destroyed since
  // Host calls of a context may be made one at a time, so here they are.
  std::shared_ptr<std::mutex> host_calls = std::make_shared<std::mutex>();
};

struct Handle {
  std::shared_ptr<Memory> memory;
  std::uint64_t count = 0;
};
struct EventState {
  int ordinal = 0;
  Point recorded;
};
struct Kernel {
  CudaDoubleKernel body = nullptr;
  std::vector<std::size_t> parameter_sizes;
};
struct Function {
  CuModule module = nullptr;
  Kernel kernel;
};
struct Failure {
  std::string function;
  std::uint64_t left = 0;
  CuResult result = CuResult::kSuccess;
};
struct HostRange {
  std::size_t size = 0;
  int ordinal = 0;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;  // a stream got further
  // The process that called cuInit. Read before the mutex is taken, which a fork may have copied
  // locked.
  std::atomic<pid_t> pid = 0;
  Settings settings;
  std::array<Device, kDevicesMax> devices;  // by ordinal; as many as are visible count
  std::uint64_t serial = 0;                 // no handle is ever used again
  std::map<CuMemory, Handle> handles;
  std::map<CuAddress, std::size_t> reservations;
  std::map<CuAddress, Place> places;
  std::uint64_t places_made = 0;
  std::map<CuAddress, HostRange> host_ranges;
  std::map<CuStream, std::shared_ptr<StreamState>> streams;
  std::map<CuEvent, EventState> events;
  std::map<CuModule, int> modules;  // -> ordinal
  std::map<CuFunction, Function> functions;
  std::map<std::string, Kernel> kernels;
  std::vector<Failure> failures;
  std::vector<Failure> breaks;
  std::minstd_rand delays;
  CuResult breaking = CuResult::kSuccess;  // of what the current call puts into a stream
  std::uint64_t lost_with_context = 0;

  template <typename Token>
  Token NewToken() {
    return reinterpret_cast<Token>(static_cast<std::uintptr_t>(++serial << 8 | 0xcd));
  }
};
Machine& TheMachine();
// Those of the nvlink lane, which every module has.
void AddReduceKernels(std::map<std::string, Kernel>& kernels);
void AddCodecKernels(std::map<std::string, Kernel>& kernels);
using Lock = std::unique_lock<std::mutex>;

// How every function begins: refuses before cuInit, in a forked child, and where a test said so.
CuResult Enter(const char* function);
// The ordinal of the context that is current on this thread.
CuResult CurrentOrdinal(int& ordinal);
// Whether some context is current on this thread, as every call must have it for which the CUDA
// Driver API (Memory, Stream, Event, Module and Execution Control, Unified Addressing) lists
// CUDA_ERROR_INVALID_CONTEXT. Its lists for the GPUs themselves (Device Management) name it too,
// but those calls come before there is any context. Not listed, and not asked here: Virtual Memory
// Management, Multicast Object Management, cuEventQuery, and words of Stream Memory Operations.
CuResult NeedContext();
// Current contexts of this thread, the last on top.
std::vector<CuContext>& ContextStack();

// One lock for the address space of a GPU: whoever maps, unmaps, frees, pins or launches has it,
// and others wait.
//
// Documented: "Any CUDA API call may block or synchronize for various reasons such as contention
// for or unavailability of internal resources" (CUDA Driver API, API synchronization behavior);
// cuMemFree "may perform implicit synchronization" (Memory Management); cuMemUnmap and
// cuMemSetAccess exhibit "synchronous behavior for most use cases" (Virtual Memory Management),
// which does not say with what.
//
// Assumed: that it is one lock, that these calls and cuMemMap, cuMemAlloc, cuMemHostRegister,
// cuIpcOpenMemHandle, cuIpcCloseMemHandle and launches take it, and that of them cuMemFree alone
// waits for the GPU while it has it (WAITS names more). tests/gpu/driver_probe shows what a driver
// does.
//
// What may take long there takes a random time of the seed's. The machine's mutex is released
// meanwhile, so look things up after this was made.
class DeviceLock {
 public:
  enum class Takes : std::uint8_t { kNoTime, kItsTime };
  // `function`: that takes it.
  DeviceLock(Lock& lock, int ordinal, Takes takes, const char* function = __builtin_FUNCTION());
  DeviceLock(const DeviceLock&) = delete;
  DeviceLock& operator=(const DeviceLock&) = delete;
  ~DeviceLock();

 private:
  Device& device_;
};
// A random time of the seed's, mostly none; none at all without a seed.
std::chrono::microseconds RandomDelay();

bool IsDevice(int ordinal);
bool Reaches(int ordinal, int peer);
CuResult Allocate(int ordinal, std::size_t size, CuHandleType types, std::shared_ptr<Memory>& made);
// A descriptor's memory, of this machine and seen by this process; else null.
std::shared_ptr<Memory> MemoryOf(UniqueFd fd);
// Bytes of a GPU that any process holds, as the kernel tells.
std::uint64_t BytesHeld(int ordinal);

// The place that `address` lies in, or places.end().
std::map<CuAddress, Place>::iterator PlaceAt(CuAddress address);
bool IsPinned(CuAddress address, std::size_t size);
// Whether this process captures a stream, whose capture is spoilt then.
bool SpoilCaptures(Machine& machine);
// Whether a GPU may read (or also write) all of a range: memory that it has access to, or pinned.
bool MayTouch(int ordinal, CuAddress address, std::size_t size, bool writes);

// Streams. `nullptr` names the default stream of the current context.
enum class Needs : std::uint8_t { kContext, kNothing };
CuResult FindStream(CuStream stream, std::shared_ptr<StreamState>& found,
                    Needs needs = Needs::kContext);
std::shared_ptr<StreamState> StartStream(int ordinal, bool blocking);
struct Posted {
  std::vector<Point> after{};
  Holds holds = Holds::kNothing;
  std::uint64_t threads = 0;
};
Point Post(const std::shared_ptr<StreamState>& stream, std::function<CuResult()> run,
           Posted how = {});
bool IsDone(const Point& point);
// Whether its context is gone or came to an error: nothing is carried out any more.
bool IsBroken(const StreamState& stream);
// Waits, and says what broke the context of the stream if something did.
CuResult WaitFor(Lock& lock, const Point& point);
CuResult WaitForDevice(Lock& lock, int ordinal);

}  // namespace headrace::cuda_double

// Declarations of all that the library must have: a definition that differs does not compile.
#define HR_CUDA_DECLARE(member, name, symbol, parameters) \
  extern "C" __attribute__((visibility("default"))) headrace::transport::CuResult symbol parameters;
namespace headrace::transport {
HR_CUDA_FUNCTIONS(HR_CUDA_DECLARE)
HR_CUDA_MULTICAST_FUNCTIONS(HR_CUDA_DECLARE)
}  // namespace headrace::transport
#undef HR_CUDA_DECLARE

// Begins a function of the library: the machine, locked.
#define HR_DOUBLE_ENTER()                                          \
  Machine& machine = TheMachine();                                 \
  if (machine.pid != ::getpid()) return CuResult::kNotInitialized; \
  Lock lock(machine.mutex);                                        \
  if (const CuResult refused = Enter(__func__); refused != CuResult::kSuccess) return refused
// The same of a function that needs a current context.
#define HR_DOUBLE_ENTER_IN_CONTEXT() \
  HR_DOUBLE_ENTER();                 \
  if (const CuResult none = NeedContext(); none != CuResult::kSuccess) return none
