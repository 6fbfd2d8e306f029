#include "tests/support/cuda_double/machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace headrace::cuda_double {
namespace {

constexpr std::string_view kFilePrefix = "/memfd:headrace-cuda:";

// The number of the GPU that a file of this machine belongs to; -1 for other files.
int NumberOfFile(const std::string& target) {
  const std::string prefix = std::string(kFilePrefix) + TheMachine().settings.machine + ":";
  if (!target.starts_with(prefix)) return -1;
  return std::atoi(target.c_str() + prefix.size());
}

int OrdinalOf(int number) {
  const auto& visible = TheMachine().settings.visible;
  const auto found = std::ranges::find(visible, number);
  return found == visible.end() ? -1 : static_cast<int>(found - visible.begin());
}

// inode -> bytes of one process's files of the GPU of `number`, open or mapped. Processes end while
// they are looked at, and others may not be looked into.
void AddHeld(const std::filesystem::path& process, int number,
             std::map<std::uint64_t, std::uint64_t>& held) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd", ignored)) {
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    struct stat status {};
    if (ignored || NumberOfFile(target) != number) continue;
    if (::stat(entry.path().c_str(), &status) != 0) continue;
    held[status.st_ino] = static_cast<std::uint64_t>(status.st_size);
  }
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    const auto at = line.find(kFilePrefix);
    if (at == std::string::npos || NumberOfFile(line.substr(at)) != number) continue;
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;
    std::uint64_t inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %lu", &start, &end, &offset, &inode) != 4) {
      continue;
    }
    held[inode] = std::max(held[inode], offset + end - start);
  }
}

bool HoldsNothing(const Machine& machine) {
  return std::ranges::all_of(machine.devices, [](const Device& d) { return d.uses == 0; }) &&
         machine.handles.empty() && machine.reservations.empty() && machine.places.empty() &&
         machine.host_ranges.empty() && machine.streams.empty() && machine.events.empty() &&
         machine.modules.empty();
}

}  // namespace

Machine& TheMachine() {
  // Never destroyed: threads of streams may outlive main, as a driver's do.
  static Machine& machine = []() -> Machine& {
    auto made = std::make_unique<Machine>();
    AddReduceKernels(made->kernels);
    AddCodecKernels(made->kernels);
    return *made.release();
  }();
  return machine;
}

CuResult Enter(const char* function) {
  Machine& machine = TheMachine();
  // Takes what is due out of the list; the last one's result, or success.
  const auto take_due = [&](std::vector<Failure>& failures) {
    CuResult result = CuResult::kSuccess;
    std::erase_if(failures, [&](Failure& failure) {
      // By the symbol or by its name without the version.
      const std::string_view name(function);
      if (name != failure.function && name.substr(0, name.rfind("_v")) != failure.function) {
        return false;
      }
      if (--failure.left != 0) return false;
      result = failure.result;
      return true;
    });
    return result;
  };
  machine.breaking = take_due(machine.breaks);
  return take_due(machine.failures);
}

std::vector<CuContext>& ContextStack() {
  // A driver keeps its current contexts by thread; so must its double.
  static thread_local std::vector<CuContext> stack;
  return stack;
}

CuResult CurrentOrdinal(int& ordinal) {
  const auto& stack = ContextStack();
  if (stack.empty()) return CuResult::kInvalidContext;
  auto& devices = TheMachine().devices;
  const auto found = std::ranges::find(devices, stack.back(), &Device::context);
  if (found == devices.end()) return CuResult::kContextIsDestroyed;
  ordinal = static_cast<int>(found - devices.begin());
  return found->sticky;
}

CuResult NeedContext() {
  const auto& stack = ContextStack();
  if (stack.empty()) return CuResult::kInvalidContext;
  const auto& devices = TheMachine().devices;
  return std::ranges::find(devices, stack.back(), &Device::context) == devices.end()
             ? CuResult::kContextIsDestroyed
             : CuResult::kSuccess;
}

std::chrono::microseconds RandomDelay() {
  Machine& machine = TheMachine();
  if (machine.settings.seed == 0 || machine.delays() % 4 != 0) return {};
  constexpr unsigned kDelayMaxUs = 400;
  return std::chrono::microseconds(machine.delays() % kDelayMaxUs);
}

DeviceLock::DeviceLock(Lock& lock, int ordinal, Takes takes, const char* function)
    : device_(TheMachine().devices[static_cast<std::size_t>(ordinal)]) {
  TheMachine().changed.wait(lock, [this] { return !device_.locked; });
  device_.locked = true;
  const std::string_view name(function);
  const auto& waits = TheMachine().settings.waits;
  if (waits.find(name.substr(0, name.rfind("_v"))) != std::string::npos) {
    WaitForDevice(lock, ordinal);
  }
  const auto delay = takes == Takes::kItsTime ? RandomDelay() : std::chrono::microseconds();
  if (delay.count() == 0) return;
  lock.unlock();
  std::this_thread::sleep_for(delay);
  lock.lock();
}

DeviceLock::~DeviceLock() {
  device_.locked = false;
  TheMachine().changed.notify_all();
}

bool IsDevice(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(TheMachine().settings.visible.size());
}

bool Reaches(int ordinal, int peer) {
  const Settings& settings = TheMachine().settings;
  const auto number = [&](int of) { return settings.visible[static_cast<std::size_t>(of)]; };
  return ordinal == peer || settings.reaches.contains({number(ordinal), number(peer)});
}

CuResult Allocate(int ordinal, std::size_t size, CuHandleType types,
                  std::shared_ptr<Memory>& made) {
  Machine& machine = TheMachine();
  Device& device = machine.devices[static_cast<std::size_t>(ordinal)];
  if (size > machine.settings.memory_size - device.allocated) return CuResult::kOutOfMemory;
  const int number = machine.settings.visible[static_cast<std::size_t>(ordinal)];
  const std::string name =
      "headrace-cuda:" + machine.settings.machine + ":" + std::to_string(number);
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return CuResult::kOperatingSystem;
  }
  device.allocated += size;
  // The bytes go back to the GPU with the last handle and mapping of this process.
  const auto give_back = [ordinal](Memory* memory) {
    const std::unique_ptr<Memory> last(memory);
    auto& devices = TheMachine().devices;
    devices[static_cast<std::size_t>(ordinal)].allocated -= last->size;
  };
  auto memory = std::make_unique<Memory>();
  memory->fd = std::move(fd);
  memory->size = size;
  memory->ordinal = ordinal;
  memory->handle_types = types;
  made = std::shared_ptr<Memory>(memory.release(), give_back);
  return CuResult::kSuccess;
}

std::shared_ptr<Memory> MemoryOf(UniqueFd fd) {
  std::error_code error;
  const auto target =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get()), error).string();
  struct stat status {};
  if (error || ::fstat(fd.get(), &status) != 0) return nullptr;
  const int number = NumberOfFile(target);
  const int ordinal = number < 0 ? -1 : OrdinalOf(number);
  if (ordinal < 0) return nullptr;
  auto memory = std::make_shared<Memory>();
  memory->fd = std::move(fd);
  memory->size = static_cast<std::size_t>(status.st_size);
  memory->ordinal = ordinal;
  memory->handle_types = CuHandleType::kPosixFd;
  return memory;
}

std::uint64_t BytesHeld(int ordinal) {
  const int number = TheMachine().settings.visible[static_cast<std::size_t>(ordinal)];
  std::map<std::uint64_t, std::uint64_t> held;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0])) != 0) {
      AddHeld(entry.path(), number, held);
    }
  }
  std::uint64_t sum = 0;
  for (const auto& [inode, size] : held) sum += size;
  return sum;
}

std::map<CuAddress, Place>::iterator PlaceAt(CuAddress address) {
  auto& places = TheMachine().places;
  auto after = places.upper_bound(address);
  if (after == places.begin()) return places.end();
  const auto place = std::prev(after);
  return address - place->first < place->second.size ? place : places.end();
}

bool IsPinned(CuAddress address, std::size_t size) {
  const auto& ranges = TheMachine().host_ranges;
  const auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  const auto range = std::prev(after);
  const std::uint64_t offset = address - range->first;
  return offset < range->second.size && size <= range->second.size - offset;
}

namespace {

// Memory of the host that was pinned part by part, without a gap.
bool IsPinnedInParts(CuAddress address, std::size_t size) {
  const CuAddress end = address + size;
  while (address < end && IsPinned(address, 1)) {
    const auto& range = *std::prev(TheMachine().host_ranges.upper_bound(address));
    address = range.first + range.second.size;
  }
  return address >= end;
}

}  // namespace

bool MayTouch(int ordinal, CuAddress address, std::size_t size, bool writes) {
  if (size == 0 || IsPinnedInParts(address, size)) return true;
  const auto& machine = TheMachine();
  const auto needed = static_cast<unsigned>(writes ? CuAccess::kReadWrite : CuAccess::kRead);
  const CuAddress end = address + size;
  while (address < end) {
    const auto place = PlaceAt(address);
    if (place == machine.places.end()) return false;
    const auto index = static_cast<std::size_t>(ordinal);
    const int home = place->second.memory->ordinal;
    const bool may = place->second.kind == PlaceKind::kVirtual
                         ? (static_cast<unsigned>(place->second.access[index]) & needed) == needed
                         : home == ordinal || (machine.devices[index].peers.contains(home) &&
                                               (place->second.kind == PlaceKind::kPlain ||
                                                !machine.settings.Lacks("legacy_peers")));
    if (!may) return false;
    address = place->first + place->second.size;
  }
  return true;
}

}  // namespace headrace::cuda_double

using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

void headrace_cuda_double_counts(CudaDoubleCounts* counts) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  *counts = {};
  for (const Device& device : machine.devices) counts->context_uses += device.uses;
  for (const auto& [token, handle] : machine.handles) counts->memory_handles += handle.count;
  counts->reservations = machine.reservations.size();
  for (const auto& [address, place] : machine.places) {
    if (place.kind == PlaceKind::kVirtual) ++counts->mappings;
    if (place.kind == PlaceKind::kPlain) ++counts->allocations;
    counts->legacy_mappings += place.opens;
  }
  counts->host_registrations = machine.host_ranges.size();
  counts->streams = machine.streams.size();
  counts->events = machine.events.size();
  counts->modules = machine.modules.size();
  counts->lost_with_context = machine.lost_with_context;
}

int headrace_cuda_double_restart() {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  if (!HoldsNothing(machine)) return 0;
  machine.pid = 0;
  machine.failures.clear();
  machine.breaks.clear();
  machine.lost_with_context = 0;
  return 1;
}

void headrace_cuda_double_fail(const char* function, std::uint64_t nth, CuResult result) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  machine.failures.push_back({function, nth, result});
}

void headrace_cuda_double_break(const char* function, std::uint64_t nth, CuResult result) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  machine.breaks.push_back({function, nth, result});
}

void headrace_cuda_double_kernel(const char* name, CudaDoubleKernel body,
                                 const std::size_t* parameter_sizes, std::size_t parameters_count) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  machine.kernels[name] = {body, {parameter_sizes, parameter_sizes + parameters_count}};
}

int headrace_cuda_double_may_touch(CuDevice device, CuAddress address, std::size_t size,
                                   int writes) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  if (!IsDevice(device)) return 0;
  if (MayTouch(device, address, size, writes != 0)) return 1;
  machine.devices[static_cast<std::size_t>(device)].sticky = CuResult::kIllegalAddress;
  return 0;
}
