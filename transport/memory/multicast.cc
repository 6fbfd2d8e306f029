#include "transport/memory/multicast.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

Error CannotBind(std::string cause) { return Error(Code::kUnavailable, std::move(cause)); }

CuAddress AddressAt(const std::byte* pointer) { return reinterpret_cast<CuAddress>(pointer); }

}  // namespace

void Multicast::UnbindTraits::Release(const Value& value) {
  value.driver->NoteRelease(
      value.driver->multicast()->unbind(value.object, value.device, value.offset, value.size));
}

Multicast::~Multicast() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  requests_.fetch_add(1);
  requests_.notify_all();
}

Status Multicast::Start(OnMissing on_missing) {
  HR_CHECK(!thread_.joinable());
  if (driver_.multicast() == nullptr) {
    return CannotBind("CUDA's driver has no multicast: install NVIDIA's driver 530 or later");
  }
  const auto able =
      std::ranges::count_if(devices_, [](const CudaDevice& device) { return device.multicast; });
  if (able < 2) {
    return CannotBind(fmt::format(
        "{} of {} GPUs can take part in multicast: it needs NVSwitch and two of them at the least",
        able, devices_.size()));
  }
  on_missing_ = std::move(on_missing);
  thread_ = std::jthread([this](const std::stop_token& stop) { Serve(stop); });
  pthread_setname_np(thread_.native_handle(), "hr-multicast");
  return {};
}

void Multicast::Add(CuDevice device, CuAddress address, std::uint64_t size,
                    std::uint64_t piece_size) {
  const std::lock_guard lock(mutex_);
  HR_CHECK(size > 0, device, address);
  ranges_[address] = {device, size, piece_size};
}

void Multicast::Drop(CuAddress address) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(address);
  for (Binding& binding : bindings_) {
    const State state = binding.state.load(std::memory_order_acquire);
    if (state != State::kBound && state != State::kRefused) continue;
    const auto end = binding.bases.begin() + binding.count;
    if (std::find(binding.bases.begin(), end, address) == end) continue;
    HR_CHECK(binding.made.has_value() == (state == State::kBound), address);
    binding.made.reset();
    binding.state.store(State::kFree, std::memory_order_release);
  }
}

// Whether it is about the memory that these members are in.
bool Multicast::Matches(const Binding& binding, std::span<std::byte* const> members,
                        std::span<const std::int8_t> devices) {
  if (binding.count != members.size()) return false;
  HR_CHECK(members.size() == devices.size(), members.size(), devices.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    // A member before the base is further behind it than any size.
    if (binding.devices[i] != devices[i]) return false;
    if (AddressAt(members[i]) - binding.bases[i] >= binding.sizes[i]) return false;
  }
  return true;
}

CuAddress Multicast::Find(std::span<std::byte* const> members, std::span<const std::int8_t> devices,
                          std::uint64_t size) {
  if (members.size() < 2 || members.size() > kMembersMax || size == 0) return 0;
  bool is_requested = false;
  for (const Binding& binding : bindings_) {
    const State state = binding.state.load(std::memory_order_acquire);
    is_requested = is_requested || state == State::kRequested;
    if (state != State::kBound && state != State::kRefused) continue;
    if (!Matches(binding, members, devices)) continue;
    if (state == State::kRefused) return 0;
    const std::uint64_t offset = AddressAt(members[0]) - binding.bases[0];
    for (std::size_t i = 1; i < members.size(); ++i) {
      if (AddressAt(members[i]) - binding.bases[i] != offset) return 0;
    }
    const bool is_inside = offset <= binding.size && size <= binding.size - offset;
    return is_inside ? binding.address + offset : 0;
  }
  // One at a time: all transfers of the same memory would request it.
  if (!is_requested) RequestBinding(members, devices, size);
  return 0;
}

void Multicast::RequestBinding(std::span<std::byte* const> members,
                               std::span<const std::int8_t> devices, std::uint64_t size) {
  for (Binding& binding : bindings_) {
    if (binding.state.load(std::memory_order_acquire) != State::kFree) continue;
    HR_CHECK(members.size() >= 2 && members.size() <= binding.bases.size(), members.size());
    HR_CHECK(devices.size() == members.size(), devices.size(), members.size());
    binding.count = static_cast<std::uint32_t>(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      binding.devices[i] = devices[i];
      binding.bases[i] = AddressAt(members[i]);
      binding.sizes[i] = size;
    }
    binding.state.store(State::kRequested, std::memory_order_release);
    requests_.fetch_add(1);
    requests_.notify_one();
    return;
  }
}

void Multicast::Serve(const std::stop_token& stop) {
  std::uint32_t seen = 0;
  while (!stop.stop_requested()) {
    requests_.wait(seen);
    seen = requests_.load();
    MemoryGate::Caller caller(gate_);
    while (!caller.TryBegin(MonotonicNow())) {
      if (stop.stop_requested()) return;
      std::this_thread::sleep_for(std::chrono::nanoseconds(MemoryGate::kLookEvery));
    }
    const std::lock_guard lock(mutex_);
    for (Binding& binding : bindings_) {
      if (binding.state.load(std::memory_order_acquire) == State::kRequested) Resolve(binding);
    }
  }
}

// From the members' addresses to the memory that they are in, and that bound.
void Multicast::Resolve(Binding& binding) {
  const State state = binding.state.load(std::memory_order_acquire);
  HR_CHECK(state == State::kRequested && !binding.made, static_cast<std::uint32_t>(state));
  std::uint64_t piece_size = 0;
  std::uint64_t least = UINT64_MAX;
  Status done;
  for (std::uint32_t i = 0; i < binding.count; ++i) {
    const auto after = ranges_.upper_bound(binding.bases[i]);
    const auto range = after == ranges_.begin() ? ranges_.end() : std::prev(after);
    if (range == ranges_.end() || binding.bases[i] - range->first >= range->second.size) {
      done = CannotBind("some of the memory was not mapped by this service");
      continue;
    }
    const Range& of = range->second;
    binding.bases[i] = range->first;
    binding.sizes[i] = of.size;
    least = std::min(least, of.size);
    if (of.piece_size == 0) done = CannotBind("memory of CUDA IPC handles cannot be bound");
    if (i != 0 && of.piece_size != piece_size && done) {
      done = CannotBind("GPUs' memory is in pieces of different sizes");
    }
    piece_size = of.piece_size;
  }
  HR_CHECK(binding.count >= 2, binding.count);
  binding.size = least;
  if (done) done = Bind(binding, piece_size);
  if (!done && reason_.empty()) {
    reason_ = done.error().text();
    if (on_missing_) on_missing_(reason_);
  }
  binding.state.store(done ? State::kBound : State::kRefused, std::memory_order_release);
}

Status Multicast::Bind(Binding& binding, std::uint64_t piece_size) {
  std::array<bool, 128> seen{};
  for (std::uint32_t i = 0; i < binding.count; ++i) {
    const auto device = static_cast<std::size_t>(binding.devices[i]);
    HR_CHECK(device < devices_.size(), device, devices_.size());
    if (std::exchange(seen[device], true)) {
      return CannotBind(fmt::format("two members are on GPU {}", device));
    }
    if (!devices_[device].multicast) {
      return CannotBind(fmt::format("GPU {} cannot take part in multicast", device));
    }
  }
  const CudaMulticast& call = *driver_.multicast();
  const CuMulticastProperties properties{.devices_count = binding.count, .size = binding.size};
  std::size_t granularity = 0;
  auto done =
      driver_.Check(call.get_granularity(&granularity, &properties, CuGranularity::kMinimum),
                    "ask in what steps multicast binds");
  if (!done) return done;
  const bool fits = granularity != 0 && piece_size % granularity == 0 &&
                    binding.size % piece_size == 0 &&
                    std::ranges::all_of(std::span(binding.bases).first(binding.count),
                                        [&](CuAddress base) { return base % granularity == 0; });
  if (!fits) {
    return CannotBind(
        fmt::format("multicast binds in steps of {} bytes, and GPUs' memory is in pieces of {}",
                    granularity, piece_size));
  }
  Made made;
  CuMemory object = 0;
  done = driver_.Check(call.create(&object, &properties), "make a multicast object");
  if (!done) return done;
  made.object = VmmMemory({&driver_, object});
  if (done = BindMembers(binding, made, piece_size); !done) return done;
  if (done = MapForAll(binding, made); !done) return done;
  HR_CHECK(made.bounds.size() == binding.count * (binding.size / piece_size), binding.size,
           made.bounds.size());
  binding.address = made.mapping.get().address;
  binding.made = std::move(made);
  return {};
}

Status Multicast::BindMembers(Binding& binding, Made& made, std::uint64_t piece_size) const {
  const CudaMulticast& call = *driver_.multicast();
  const CuMemory object = made.object.get().memory;
  // All of them before the first bind.
  for (std::uint32_t i = 0; i < binding.count; ++i) {
    auto done = driver_.Check(call.add_device(object, binding.devices[i]),
                              fmt::format("add GPU {} to a multicast object", binding.devices[i]));
    if (!done) return done;
  }
  for (std::uint32_t i = 0; i < binding.count; ++i) {
    for (std::uint64_t at = 0; at < binding.size; at += piece_size) {
      auto done = driver_.Check(
          call.bind_address(object, at, binding.bases[i] + at, piece_size, 0),
          fmt::format("bind memory of GPU {} to a multicast object", binding.devices[i]));
      if (!done) return done;
      // What is unbound must be exactly what a call has bound.
      made.bounds.emplace_back(Bound({&driver_, object, binding.devices[i], at, piece_size}));
    }
  }
  return {};
}

Status Multicast::MapForAll(const Binding& binding, Made& made) const {
  auto reservation = ReserveAddresses(driver_, binding.size);
  if (!reservation) return reservation.error();
  made.reservation = std::move(*reservation);
  auto mapping = MapMemory(made.object, made.reservation.get().address, binding.size);
  if (!mapping) return mapping.error();
  made.mapping = std::move(*mapping);
  std::vector<CuAccessDescription> access;
  for (std::uint32_t i = 0; i < binding.count; ++i) {
    access.push_back({{CuLocationType::kDevice, binding.devices[i]}, CuAccess::kReadWrite});
  }
  return driver_.Check(driver_.call().mem_set_access(made.mapping.get().address, binding.size,
                                                     access.data(), access.size()),
                       "let GPUs access a multicast address");
}

std::string Multicast::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::size_t Multicast::bound_count() const {
  return static_cast<std::size_t>(std::ranges::count_if(bindings_, [](const Binding& binding) {
    return binding.state.load(std::memory_order_acquire) == State::kBound;
  }));
}

}  // namespace headrace::transport
