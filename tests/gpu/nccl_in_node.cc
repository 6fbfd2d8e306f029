#include "tests/gpu/nccl_in_node.h"

#include <fmt/format.h>

#include <thread>
#include <vector>

#include "ipc/base/fd.h"
#include "tests/support/device_memory.h"
#include "transport/nccl/nccl_transport.h"

namespace headrace::gpu {
namespace {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kCountsInNode[] = {1, 1001, 3'000'017};
constexpr TimeNs kPatienceInNode = 120 * kSecond;

// Small integers, whose sum is exact in every order.
float Element(std::size_t gpu, std::size_t index) {
  return static_cast<float>((index * 5 + gpu * 17) % 1021);
}

// Reduces from all GPUs to pinned memory of the host, and broadcasts it back to them.
class Round {
 public:
  Round(const Gpus& gpus, Transport& transport, std::size_t count)
      : gpus_(gpus), transport_(transport), count_(count) {}

  Status Run() {
    if (Status done = Fill(); !done) return done;
    Transfer transfer{.token = 1,
                      .kind = Collective::kReduce,
                      .dtype = DType::kFloat32,
                      .count = count_,
                      .output = reinterpret_cast<std::byte*>(host_address_)};
    for (const DeviceMemory& memory : memory_) {
      const std::uint32_t member = transfer.members_count++;
      transfer.members[member] = reinterpret_cast<std::byte*>(memory.get().thing);
      transfer.devices[member] = static_cast<std::int8_t>(member);
    }
    if (Status done = Move(transfer); !done) return done;
    transfer.kind = Collective::kBroadcast;
    transfer.root = transfer.members_count;
    transfer.members[transfer.members_count++] = transfer.output;
    if (Status done = Move(transfer); !done) return done;
    if (Status done = Expect(1); !done) return done;
    --transfer.members_count;
    transfer.root = 0;
    transfer.kind = Collective::kAllReduce;
    if (Status done = Move(transfer); !done) return done;
    return Expect(static_cast<float>(gpus_.count()));
  }

 private:
  Status Fill() {
    auto pages = Mapping::Anonymous((count_ * sizeof(float) / 4096 + 1) * 4096);
    if (!pages) return pages.error();
    host_ = std::move(pages).value();
    auto pinned = RegisterHostMemory(gpus_.context(0), host_.data(), host_.size());
    if (!pinned) return pinned.error();
    pinned_ = std::move(pinned).value();
    for (std::size_t gpu = 0; gpu < gpus_.count(); ++gpu) {
      auto made = AllocateDeviceMemory(gpus_.contexts()[gpu], count_ * sizeof(float));
      if (!made) return made.error();
      std::vector<float> elements(count_);
      for (std::size_t i = 0; i < count_; ++i) elements[i] = Element(gpu, i);
      const CurrentContext current(gpus_.driver(), gpus_.contexts()[gpu].get().context);
      Status done =
          gpus_.driver().Check(gpus_.driver().call().memcpy_to_device(
                                   made->get().thing, elements.data(), count_ * sizeof(float)),
                               "fill memory");
      if (!done) return done;
      // The copy from pageable memory may go on after its call, and no other stream waits for it.
      done =
          gpus_.driver().Check(gpus_.driver().call().stream_synchronize(nullptr), "await a copy");
      if (!done) return done;
      memory_.push_back(std::move(made).value());
    }
    const CurrentContext current(gpus_.driver(), gpus_.context(0).get().context);
    return gpus_.driver().Check(
        gpus_.driver().call().mem_host_get_device_pointer(&host_address_, host_.data(), 0),
        "ask for the address of pinned memory");
  }

  Status Move(const Transfer& transfer) {
    if (transport_.Post(transfer, MonotonicNow()) != PostResult::kAccepted) {
      return Error(Code::kInternal, "a post was refused");
    }
    std::vector<Completion> completions;
    const TimeNs deadline = MonotonicNow() + kPatienceInNode;
    while (completions.empty() && MonotonicNow() < deadline) {
      transport_.DoWork(MonotonicNow(), completions);
      std::this_thread::yield();
    }
    if (completions.empty()) return Error(Code::kTimeout, "nothing ended in two minutes");
    if (completions[0].code == Code::kOk) return {};
    return Error(completions[0].code, completions[0].cause);
  }

  // Every GPU has `times` the sum.
  Status Expect(float times) {
    for (std::size_t gpu = 0; gpu < memory_.size(); ++gpu) {
      std::vector<float> elements(count_);
      const CurrentContext current(gpus_.driver(), gpus_.contexts()[gpu].get().context);
      Status done = gpus_.driver().Check(
          gpus_.driver().call().memcpy_to_host(elements.data(), memory_[gpu].get().thing,
                                               count_ * sizeof(float)),
          "read memory");
      if (!done) return done;
      for (std::size_t i = 0; i < count_; ++i) {
        float sum = 0;
        for (std::size_t each = 0; each < memory_.size(); ++each) sum += Element(each, i);
        if (elements[i] == times * sum) continue;
        return Error(Code::kCorrupt, fmt::format("element {} of {} on GPU {} is {} and not {}", i,
                                                 count_, gpu, elements[i], times * sum));
      }
    }
    return {};
  }

  const Gpus& gpus_;
  Transport& transport_;
  std::size_t count_;
  Mapping host_;
  HostRegistration pinned_;
  CuAddress host_address_ = 0;
  std::vector<DeviceMemory> memory_;
};

}  // namespace

std::string CheckInNode(const Gpus& gpus, const std::string& library) {
  NcclOptions options;
  options.library = library;
  options.piece_size = std::size_t{1} << 20;
  const auto opened = NcclTransport::Open(gpus, options);
  if (!opened) return opened.error().text();
  for (const std::size_t count : kCountsInNode) {
    Round round(gpus, **opened, count);
    if (const Status done = round.Run(); !done) return done.error().text();
  }
  fmt::print("{} GPUs of a node: reduce to the host, broadcast from there, all_reduce: right\n",
             gpus.count());
  return "";
}

}  // namespace headrace::gpu
