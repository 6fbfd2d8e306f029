// Memory of several GPUs behind one address: a switch between them (NVLS) returns the sum for a
// read there and copies a write to all of them.
//
// Mapped memory is registered here (Add) and removed before it is unmapped (Drop). The lane asks
// for the address of a transfer's members (Find), which answers at once: the first time it has none
// and requests one, a thread of this class binds the members' memory, and from then on there is an
// address. Memory that cannot be bound never gets one, and `reason` says why for the first such
// case; its transfers use the kernels.
//
// A binding holds a further reference to the memory, so Drop removes it first: afterwards nothing
// here refers to the memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ipc/base/result.h"
#include "ipc/base/unique_handle.h"
#include "transport/memory/cuda_device.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/memory_gate.h"

namespace headrace::transport {

class Multicast {
 public:
  static constexpr std::size_t kMembersMax = 16;   // of one binding, each on a GPU of its own
  static constexpr std::size_t kBindingsMax = 32;  // also those that were refused

  // All outlive this.
  Multicast(const CudaDriver& driver, const std::vector<CudaDevice>& devices, MemoryGate& gate)
      : driver_(driver), devices_(devices), gate_(gate) {}
  ~Multicast();
  Multicast(const Multicast&) = delete;
  Multicast& operator=(const Multicast&) = delete;

  using OnMissing = std::function<void(const std::string& reason)>;
  // Starts the thread that binds; once. An error where this driver or no two GPUs can do it.
  // `on_missing` (or none) is called by the thread with the first reason why memory could not be
  // bound.
  Status Start(OnMissing on_missing);

  // Memory of one GPU that was mapped for all that reach it, in pieces of `piece_size`; 0: memory
  // that cannot be bound. Any thread but those that must not wait.
  void Add(CuDevice device, CuAddress address, std::uint64_t size, std::uint64_t piece_size);
  // Unbinds it; no transfer uses it any more. The same threads.
  void Drop(CuAddress address);

  // The address of [members[i], members[i] + size) of all i at once; 0: there is none, or none yet.
  // One thread at a time. Takes no lock and allocates nothing.
  CuAddress Find(std::span<std::byte* const> members, std::span<const std::int8_t> devices,
                 std::uint64_t size);

  // Why memory could not be bound, the first time; empty: it never happened. Any thread.
  std::string reason() const;
  // Bindings that exist. Any thread.
  std::size_t bound_count() const;

 private:
  // A binding's way: from kFree to kRequested by the asker, on by the thread, back to kFree by
  // Drop.
  enum class State : std::uint32_t { kFree, kRequested, kBound, kRefused };

  struct UnbindTraits {
    struct Value {
      const CudaDriver* driver = nullptr;
      CuMemory object = 0;
      CuDevice device = 0;
      std::size_t offset = 0;
      std::size_t size = 0;
      friend bool operator==(const Value&, const Value&) = default;
    };
    static Value None() { return {}; }
    static void Release(const Value& value);
  };
  using Bound = UniqueHandle<UnbindTraits>;

  // What the driver made for a binding, in build order.
  struct Made {
    VmmMemory object;
    std::vector<Bound> bounds;  // one for each call that bound something
    Reservation reservation;
    VmmMapping mapping;
  };

  // `state` guards the rest: stored with release after the fields, loaded with acquire before them.
  // The asker writes while it is kFree, the thread while it is kRequested.
  struct Binding {
    std::atomic<State> state = State::kFree;
    std::uint32_t count = 0;
    std::array<std::int8_t, kMembersMax> devices{};
    std::array<CuAddress, kMembersMax> bases{};  // kRequested: the members' addresses
    std::array<std::uint64_t, kMembersMax> sizes{};
    CuAddress address = 0;
    std::uint64_t size = 0;    // that is bound, from each base on
    std::optional<Made> made;  // the thread's and Drop's, under the mutex
  };

  struct Range {
    CuDevice device = 0;
    std::uint64_t size = 0;
    std::uint64_t piece_size = 0;
  };

  static bool Matches(const Binding& binding, std::span<std::byte* const> members,
                      std::span<const std::int8_t> devices);
  void RequestBinding(std::span<std::byte* const> members, std::span<const std::int8_t> devices,
                      std::uint64_t size);
  void Serve(const std::stop_token& stop);
  void Resolve(Binding& binding);
  Status Bind(Binding& binding, std::uint64_t piece_size);
  Status BindMembers(Binding& binding, Made& made, std::uint64_t piece_size) const;
  Status MapForAll(const Binding& binding, Made& made) const;

  const CudaDriver& driver_;
  const std::vector<CudaDevice>& devices_;
  MemoryGate& gate_;
  std::array<Binding, kBindingsMax> bindings_;
  std::atomic<std::uint32_t> requests_ = 0;  // counts; the thread waits for it to change
  mutable std::mutex mutex_;                 // for what follows, and bindings' `made`
  std::map<CuAddress, Range> ranges_;
  std::string reason_;
  OnMissing on_missing_;
  std::jthread thread_;
};

// Memory that is announced, for as long as this lives.
struct MulticastRangeTraits {
  struct Value {
    Multicast* multicast = nullptr;
    CuAddress address = 0;
    friend bool operator==(const Value&, const Value&) = default;
  };
  static Value None() { return {}; }
  static void Release(const Value& value) { value.multicast->Drop(value.address); }
};
using MulticastRange = UniqueHandle<MulticastRangeTraits>;

}  // namespace headrace::transport
