#include "tests/contract/device/staged_transport.h"

#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kGuardSize = 256;
constexpr std::size_t kAlignment = 64;  // of which a member keeps its place
constexpr std::byte kGuard{0x5A};

void Check(const Gpus& gpus, CuResult result) {
  HR_CHECK(result == CuResult::kSuccess, gpus.driver().Failed(result, "stage").text());
}

// Bytes from a member's pointer to the end of the last element that it may have.
std::size_t ExtentOf(const Transfer& transfer) {
  std::size_t extent = transfer.runs.empty() ? transfer.Bytes() : 0;
  for (const Run& run : transfer.runs) {
    extent = std::max(extent, static_cast<std::size_t>(run.offset) +
                                  static_cast<std::size_t>(run.count) * SizeOf(transfer.dtype));
  }
  return extent;
}

}  // namespace

StagedTransport::StagedTransport(const Gpus& gpus, std::size_t gpus_count, Transport& inner)
    : gpus_(gpus), gpus_count_(gpus_count), inner_(inner) {
  for (std::size_t device = 0; device < gpus_count; ++device) {
    const CurrentContext current(gpus.driver(), gpus.contexts()[device].get().context);
    for (std::size_t peer = 0; peer < gpus_count; ++peer) {
      if (peer == device) continue;
      const CuResult enabled =
          gpus.driver().call().ctx_enable_peer_access(gpus.contexts()[peer].get().context, 0);
      if (enabled != CuResult::kPeerAccessAlreadyEnabled) Check(gpus, enabled);
    }
  }
}

PostResult StagedTransport::Post(const Transfer& transfer, TimeNs now) {
  Transfer posted = transfer;
  Staged staged;
  // A transfer that breaks the contract is the inner transport's to refuse.
  if (transfer.runs.size() <= kRunsMax) staged = Stage(transfer, posted);
  const PostResult result = inner_.Post(posted, now);
  if (result == PostResult::kAccepted) {
    HR_CHECK(staged_.emplace(transfer.token, std::move(staged)).second, transfer.token);
  }
  return result;
}

bool StagedTransport::DoWork(TimeNs now, std::vector<Completion>& completions) {
  const std::size_t before = completions.size();
  const bool again = inner_.DoWork(now, completions);
  for (std::size_t i = before; i < completions.size(); ++i) {
    const auto found = staged_.find(completions[i].token);
    HR_CHECK(found != staged_.end(), "a second completion", completions[i].token);
    BringBack(found->second);
    staged_.erase(found);
  }
  return again;
}

StagedTransport::Staged StagedTransport::Stage(const Transfer& transfer, Transfer& posted) const {
  Staged staged;
  staged.original = transfer;
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    const std::size_t device = i % gpus_count_;
    staged.members.push_back(StageMember(transfer.members[i], ExtentOf(transfer), device));
    posted.members[i] = reinterpret_cast<std::byte*>(staged.members[i].at);
    posted.devices[i] = static_cast<std::int8_t>(device);
  }
  if (transfer.kind == Collective::kReduce) StageOutput(transfer, posted, staged);
  StageOutputs(transfer, posted, staged);
  return staged;
}

StagedTransport::Copy StagedTransport::StageMember(const std::byte* from, std::size_t size,
                                                   std::size_t device) const {
  const std::size_t shift = reinterpret_cast<std::uintptr_t>(from) % kAlignment;
  std::vector<std::byte> bytes(2 * kGuardSize + shift + size, kGuard);
  if (size != 0) std::memcpy(bytes.data() + kGuardSize + shift, from, size);
  Copy copy;
  auto memory = AllocateDeviceMemory(gpus_.contexts()[device], bytes.size());
  HR_CHECK(memory.ok(), memory.error().text());
  copy.memory = std::move(*memory);
  copy.at = copy.memory.get().thing + kGuardSize + shift;
  copy.size = size;
  copy.device = device;
  const CurrentContext current(gpus_.driver(), gpus_.contexts()[device].get().context);
  Check(gpus_, gpus_.driver().call().memcpy_to_device(copy.memory.get().thing, bytes.data(),
                                                      bytes.size()));
  // The call may return before the bytes are there, and the transport's streams do not wait for it.
  Check(gpus_, gpus_.driver().call().ctx_synchronize());
  return copy;
}

void StagedTransport::StageOutput(const Transfer& transfer, Transfer& posted,
                                  Staged& staged) const {
  if (transfer.output == transfer.members[transfer.root]) {
    posted.output = posted.members[transfer.root];
    return;
  }
  if (transfer.output_on_root_gpu) {
    const std::size_t device = transfer.root % gpus_count_;
    staged.outputs.push_back(StageMember(transfer.output, ExtentOf(transfer), device));
    posted.output = reinterpret_cast<std::byte*>(staged.outputs[0].at);
    return;
  }
  constexpr std::size_t kPage = 4096;
  auto pages = Mapping::Anonymous((transfer.Bytes() / kPage + 1) * kPage);
  HR_CHECK(pages.ok(), transfer.Bytes());
  staged.output = std::move(*pages);
  auto pinned = RegisterHostMemory(gpus_.contexts()[0], staged.output.data(), staged.output.size());
  HR_CHECK(pinned.ok(), pinned.error().text());
  staged.registration = std::move(*pinned);
  CuAddress address = 0;
  const CurrentContext current(gpus_.driver(), gpus_.contexts()[0].get().context);
  Check(gpus_,
        gpus_.driver().call().mem_host_get_device_pointer(&address, staged.output.data(), 0));
  posted.output = reinterpret_cast<std::byte*>(address);
}

void StagedTransport::StageOutputs(const Transfer& transfer, Transfer& posted,
                                   Staged& staged) const {
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    if (transfer.outputs[i] == nullptr) continue;
    const std::size_t size = transfer.Bytes() / transfer.members_count;
    staged.outputs.push_back(StageMember(transfer.outputs[i], size, i % gpus_count_));
    posted.outputs[i] = reinterpret_cast<std::byte*>(staged.outputs.back().at);
  }
}

std::vector<std::byte> StagedTransport::Read(const Copy& copy) const {
  const std::size_t before = copy.at - copy.memory.get().thing;
  std::vector<std::byte> bytes(before + copy.size + kGuardSize);
  const CurrentContext current(gpus_.driver(), gpus_.contexts()[copy.device].get().context);
  Check(gpus_,
        gpus_.driver().call().memcpy_to_host(bytes.data(), copy.memory.get().thing, bytes.size()));
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(before + copy.size);
  HR_CHECK(
      std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(before), is_guard) &&
          std::all_of(end, bytes.end(), is_guard),
      "a transfer wrote beyond its memory");
  return {bytes.begin() + static_cast<std::ptrdiff_t>(before), end};
}

void StagedTransport::BringBack(const Staged& staged) const {
  const Transfer& transfer = staged.original;
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    const auto bytes = Read(staged.members[i]);
    std::ranges::copy(bytes, transfer.members[i]);
  }
  auto output = staged.outputs.begin();
  if (transfer.output_on_root_gpu) std::ranges::copy(Read(*output++), transfer.output);
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    if (transfer.outputs[i] == nullptr) continue;
    std::ranges::copy(Read(*output++), transfer.outputs[i]);
  }
  if (staged.output.size() == 0) return;
  const std::size_t size = SizeOf(transfer.dtype);
  ForEachStretch(RunWalk(transfer), 0, transfer.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   std::memcpy(transfer.output + offset, staged.output.data() + element * size,
                               count * size);
                 });
}

}  // namespace headrace::transport
