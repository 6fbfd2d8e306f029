#include "service/mapping/mapper.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/sealed_memory.h"

namespace headrace::service {
namespace {

// A sum walks the same offset of every rank's segment at once. Some processors tell cache lines
// apart by address bits 12 to 27 only (the way predictor of AMD's Zen): segments 256 MiB apart then
// throw each other out of the cache at every step, and a sum over four takes twice its time. An odd
// number of pages between one segment and the next keeps them apart.
constexpr std::size_t kStaggerStep = 17 * ipc::kPageSize;
constexpr std::size_t kStaggersMax = kStaggerMax / kStaggerStep;

}  // namespace

Mapper::Mapper(Wakeable& thread, InboxWriter<RpcMessage>& rpc, ipc::BoardLayout& board,
               const transport::Gpus* gpus)
    : rpc_(rpc), gpu_rows_(board, gpus), gpus_(gpus), inbox_(thread) {
  if (gpus_ != nullptr) gpu_calls_.emplace(gpus_->memory_gate());
}

bool Mapper::DoWork(TimeNs now) {
  bool heard = rpc_.Flush(now);
  if (dispatch_) heard |= dispatch_->Flush(now);
  inbox_.PopAll(messages_);
  for (MappingMessage& message : messages_) {
    std::visit([this](auto& alternative) { Handle(std::move(alternative)); }, message);
  }
  heard |= !messages_.empty();
  messages_.clear();
  std::optional<Work> work = PopNext(now);
  if (!work) return heard;
  const std::uint32_t uid = last_uid_;
  HR_CHECK(queues_.empty() || !queues_.begin()->second.empty(), uid);
  const bool done = DoSliceOf(*work, now);
  if (!done) queues_[uid].push_back(std::move(*work));
  return true;
}

bool Mapper::IsForGpus(const Work& work) const {
  if (gpus_ == nullptr || std::holds_alternative<HostMapping>(work)) return false;
  const auto* unmapping = std::get_if<Unmapping>(&work);
  return unmapping == nullptr || unmapping->device != transport::kHost;
}

bool Mapper::IsIdle() const {
  if (gpu_look_ns_ == kNever) return queues_.empty();
  return std::ranges::all_of(queues_, [this](const auto& of_uid) {
    return std::ranges::all_of(of_uid.second, [this](const Work& w) { return IsForGpus(w); });
  });
}

std::optional<Mapper::Work> Mapper::PopNext(TimeNs now) {
  if (queues_.empty()) {
    // What waited may have been cancelled.
    if (gpu_calls_) gpu_calls_->End();
    gpu_look_ns_ = kNever;
    return std::nullopt;
  }
  const bool gpus_wait = gpu_look_ns_ != kNever && now < gpu_look_ns_;
  auto turn = queues_.upper_bound(last_uid_);
  for (std::size_t uids = queues_.size(); uids > 0; --uids) {
    if (turn == queues_.end()) turn = queues_.begin();
    std::deque<Work>& queue = turn->second;
    HR_CHECK(!queue.empty(), turn->first);
    const auto next = std::ranges::find_if(
        queue, [&](const Work& work) { return !gpus_wait || !IsForGpus(work); });
    if (next != queue.end()) {
      last_uid_ = turn->first;
      std::optional<Work> work = std::move(*next);
      queue.erase(next);
      if (queue.empty()) queues_.erase(turn);
      return work;
    }
    ++turn;
  }
  return std::nullopt;
}

bool Mapper::DoSliceOf(Work& work, TimeNs now) {
  const bool for_gpus = IsForGpus(work);
  HR_CHECK(!for_gpus || gpu_calls_.has_value(), last_uid_);
  if (for_gpus && !gpu_calls_->TryBegin(now)) {
    gpu_look_ns_ = now + transport::MemoryGate::kLookEvery;
    return false;
  }
  const bool done = std::visit([this, now](auto& each) { return DoSlice(each, now); }, work);
  if (for_gpus) {
    gpu_calls_->End();
    gpu_look_ns_ = kNever;
  }
  return done;
}

void Mapper::Handle(MapSegment message) {
  const std::uint32_t uid = message.uid;
  Add(uid, HostMapping{.request = std::move(message), .mapping = {}});
}

void Mapper::Handle(MapDeviceSegment message) {
  const std::uint32_t uid = message.uid;
  Add(uid, std::move(message));
}

void Mapper::Handle(const CancelMapping& message) {
  for (auto& [uid, queue] : queues_) {
    for (Work& work : queue) {
      const auto* host = std::get_if<HostMapping>(&work);
      const auto* device = std::get_if<MapDeviceSegment>(&work);
      const bool of_session = (host != nullptr && host->request.session == message.session) ||
                              (device != nullptr && device->session == message.session);
      if (of_session) Cancel(uid, work);
    }
  }
}

// What was mapped so far is unmapped in its place, in slices too.
void Mapper::Cancel(std::uint32_t uid, Work& work) {
  const Error cancelled(Code::kCancelled, "the session ended before its memory was mapped");
  Unmapping rest;
  if (auto* host = std::get_if<HostMapping>(&work); host != nullptr) {
    Answer({.token = host->request.token, .memory = cancelled, .uid = uid});
    rest.memory = std::move(host->mapping);
  } else {
    Answer({.token = std::get<MapDeviceSegment>(work).token, .memory = cancelled, .uid = uid});
  }
  work = std::move(rest);
}

void Mapper::Handle(DiscardSession message) {
  const std::uint32_t uid = message.session->identity().uid;
  if (message.pinned.on_gpus() != nullptr) {
    return Add(uid, Unpinning{.memory = message.session->RemoveSegments(),
                              .pinned = std::move(message.pinned),
                              .uid = uid});
  }
  for (SegmentMemory& memory : message.session->RemoveSegments()) Unmap(uid, std::move(memory));
}

void Mapper::Handle(DiscardMemory message) { Unmap(message.uid, std::move(message.memory)); }

void Mapper::Handle(const MakeScratch& message) {
  Add(message.uid, ScratchMaking{.request = message, .memory = {}, .instead = {}});
}

void Mapper::Handle(const CancelScratch& message) {
  for (auto& [uid, queue] : queues_) {
    for (Work& work : queue) {
      auto* const making = std::get_if<ScratchMaking>(&work);
      if (making == nullptr || making->request.job != message.job) continue;
      DiscardScratch rest{.memory = {}, .uid = uid};
      if (making->memory) rest.memory.push_back(std::move(*making->memory));
      work = std::move(rest);
    }
  }
}

void Mapper::Handle(DiscardScratch message) {
  const std::uint32_t uid = message.uid;
  Add(uid, std::move(message));
}

void Mapper::Handle(const PinResiduals& message) {
  Add(message.uid,
      Pinning{.request = message, .memory = message.memory, .pinned = {}, .failure = {}});
}

void Mapper::Handle(const CancelPinning& message) {
  for (auto& [uid, queue] : queues_) {
    for (Work& work : queue) {
      auto* const pinning = std::get_if<Pinning>(&work);
      const auto* request =
          pinning == nullptr ? nullptr : std::get_if<PinResiduals>(&pinning->request);
      if (request == nullptr || request->job != message.job) continue;
      pinning->failure = Error(Code::kCancelled, "the job ended before its residuals were pinned");
    }
  }
}

void Mapper::Handle(const PinStaging& message) {
  Pinning work{.request = message, .memory = message.memory, .pinned = {}, .failure = {}};
  const auto begin = reinterpret_cast<std::uintptr_t>(message.memory.data());
  if (begin % ipc::kPageSize != 0 || message.memory.size() % ipc::kPageSize != 0) {
    work.failure = Error(Code::kUnavailable,
                         fmt::format("pin {} bytes of staging for GPUs: they are no whole pages",
                                     message.memory.size()));
  }
  Add(message.uid, std::move(work));
}

void Mapper::Handle(const UnpinStaging& message) {
  const auto found = stagings_.find({message.lane, message.job});
  HR_CHECK(found != stagings_.end(), message.lane, message.job.value);
  const std::uint32_t uid = found->second.uid;
  Add(uid, StagingUnpinning{.request = message, .pinned = std::move(found->second.pinned)});
  stagings_.erase(found);
}

void Mapper::Handle(DiscardResiduals message) {
  Unpinning work{.memory = {}, .pinned = std::move(message.pinned), .uid = message.uid};
  work.memory.emplace_back(std::move(message.memory));
  Add(message.uid, std::move(work));
}

void Mapper::Unmap(std::uint32_t uid, SegmentMemory memory) {
  const std::int8_t device = memory.device();
  const std::uint64_t size = memory.size();
  Add(uid, Unmapping{.memory = std::move(memory), .device = device, .size = size});
}

Status Mapper::Begin(HostMapping& work) {
  const std::size_t stagger = (1 + segments_mapped_++ % kStaggersMax) * kStaggerStep;
  Result<Mapping> mapping =
      ipc::MapSealedMemory(work.request.memory.get(), work.request.size, stagger);
  if (!mapping) return mapping.error();
  work.mapping = std::move(mapping).value();
  return {};
}

void Mapper::Handle(const Ping& message) {
  // One probe is under way at a time; who receives no answer to this one says so.
  rpc_.TrySend(PartAnswered{.token = message.token, .part = ProbedPart::kMapping});
}

bool Mapper::DoSlice(HostMapping& work, TimeNs now) {
  Status status = work.mapping ? Status() : Begin(work);
  // Before each slice: whoever punches holes meanwhile gains little by it.
  if (status) status = ipc::CheckPopulated(work.request.memory.get(), work.request.size);
  if (!status) {
    Answer({.token = work.request.token, .memory = status.error(), .uid = work.request.uid});
    if (work.mapping) Unmap(work.request.uid, std::move(work.mapping));
    return true;
  }
  const std::size_t step = std::min(kMappingSlice, work.mapping.size() - work.filled);
  work.mapping.FillPageTables(work.filled, step);
  work.filled += step;
  HR_CHECK(work.filled <= work.mapping.size(), work.filled, work.mapping.size());
  if (work.filled == work.mapping.size()) {
    // The descriptor is not needed any more when the answer is there.
    work.request.memory.reset();
    Answer({.token = work.request.token,
            .memory = SegmentMemory(std::move(work.mapping)),
            .uid = work.request.uid});
    return true;
  }
  if (now - work.reported_ns >= kProgressPeriod) {
    work.reported_ns = now;
    // The next one says more.
    rpc_.TrySend(SegmentProgress{.token = work.request.token, .bytes = work.filled});
  }
  return false;
}

// What is taken over here is unmapped and closed before the board says so.
bool Mapper::DoSlice(Unmapping& work, TimeNs /*now*/) {
  if (!work.memory.UnmapEnd(kMappingSlice)) return false;
  gpu_rows_.Remove(work.device, work.size);
  return true;
}

bool Mapper::DoSlice(MapDeviceSegment& work, TimeNs /*now*/) {
  // The descriptors are closed with the work: the mapping keeps the memory.
  Answer({.token = work.token, .memory = Import(work), .uid = work.uid});
  return true;
}

void Mapper::Answer(SegmentMapped answer) {
  // Rpc asks for one mapping a session at a time: no more answers can wait.
  rpc_.Send(std::move(answer));
}

Result<SegmentMemory> Mapper::Import(const MapDeviceSegment& message) {
  if (gpus_ == nullptr) return Error(Code::kUnavailable, "this service has no GPU to map it for");
  Result<transport::DeviceImport> import = gpus_->Import(message.handle, message.fds);
  if (!import) return import.error();
  SegmentMemory memory(std::move(import).value());
  gpu_rows_.Add(memory.device(), memory.size());
  return memory;
}

bool Mapper::DoSlice(ScratchMaking& work, TimeNs /*now*/) {
  const MakeScratch& request = work.request;
  const Result<bool> whole = MakeMore(work);
  if (whole && !*whole) return false;
  ScratchMade made{.job = request.job,
                   .uid = request.uid,
                   .traffic_class = request.traffic_class,
                   .gpu = request.gpu,
                   .place_bytes = request.place_bytes,
                   .for_factors = request.for_factors,
                   .memory = Error(Code::kUnavailable, "this service has no GPU to make it for"),
                   .instead = std::move(work.instead)};
  if (whole) {
    gpu_rows_.AddScratch(work.memory->device(), work.memory->size());
    made.memory = std::move(*work.memory);
  } else {
    made.memory = whole.error();
    DiscardScratch discarded{.memory = {}, .uid = request.uid};
    if (work.memory) discarded.memory.push_back(std::move(*work.memory));
    Add(request.uid, std::move(discarded));
  }
  HR_CHECK(dispatch_.has_value(), request.job.value);
  // A job asks once for each size of its places.
  dispatch_->Send(std::move(made));
  return true;
}

Result<bool> Mapper::MakeMore(ScratchMaking& work) const {
  if (gpus_ == nullptr) return Error(Code::kUnavailable, "this service has no GPU to make it for");
  const MakeScratch& request = work.request;
  const std::uint64_t bytes = request.place_bytes * request.places_count;
  HR_CHECK(bytes > 0 && bytes / request.places_count == request.place_bytes, request.job.value,
           request.place_bytes, request.places_count);
  if (!work.memory && request.gpu != transport::kHost) {
    Result<ScratchMemory> of_gpu = ScratchMemory::OnGpu(*gpus_, request.gpu, bytes);
    if (of_gpu) {
      work.memory = std::move(of_gpu).value();
      return true;
    }
    work.instead = of_gpu.error().text();
  }
  if (!work.memory) {
    Result<ScratchMemory> of_host = ScratchMemory::OnHost(bytes);
    if (!of_host) return of_host.error();
    work.memory = std::move(of_host).value();
  }
  // Both are powers of two, so the larger one has room for whole places.
  HR_CHECK(std::has_single_bit(request.place_bytes), request.place_bytes);
  return work.memory->PinMore(*gpus_, std::max<std::size_t>(kMappingSlice, request.place_bytes));
}

bool Mapper::DoSlice(DiscardScratch& work, TimeNs /*now*/) {
  if (work.memory.empty()) return true;
  ScratchMemory& last = work.memory.back();
  const std::int8_t device = last.device();
  const std::size_t size = last.size();
  if (!last.ReleaseEnd()) return false;
  gpu_rows_.RemoveScratch(device, size);
  work.memory.pop_back();
  return work.memory.empty();
}

bool Mapper::DoSlice(Pinning& work, TimeNs /*now*/) {
  if (gpus_ == nullptr && !work.failure) {
    work.failure = Error(Code::kUnavailable, "this service has no GPU to pin it for");
  }
  if (work.failure) {
    if (!work.pinned.UnpinEnd()) return false;
  } else {
    const std::span<std::byte> rest = work.memory.subspan(work.pinned.size());
    const Status status =
        work.pinned.Append(*gpus_, rest.first(std::min(kMappingSlice, rest.size())));
    if (!status) work.failure = status.error();
    if (!status || work.pinned.size() < work.memory.size()) return false;
  }
  HR_CHECK(dispatch_.has_value(), last_uid_);
  std::visit([this, &work](const auto& request) { Answer(request, work); }, work.request);
  return true;
}

// A job asks once.
void Mapper::Answer(const PinResiduals& request, Pinning& work) {
  ResidualsPinned answer{.job = request.job, .pinned = std::move(work.pinned)};
  if (work.failure) answer.pinned = *work.failure;
  dispatch_->Send(std::move(answer));
}

// A lane asks once a group.
void Mapper::Answer(const PinStaging& request, Pinning& work) {
  if (work.failure) {
    return dispatch_->Send(StagingPinned{request.lane, request.job.value, *work.failure});
  }
  std::byte* const on_gpus = work.pinned.on_gpus();
  const bool is_new = stagings_
                          .emplace(std::pair(request.lane, request.job),
                                   Staging{.pinned = std::move(work.pinned), .uid = request.uid})
                          .second;
  HR_CHECK(is_new, request.lane, request.job.value);
  dispatch_->Send(StagingPinned{request.lane, request.job.value, on_gpus});
}

bool Mapper::DoSlice(StagingUnpinning& work, TimeNs /*now*/) {
  if (!work.pinned.UnpinEnd()) return false;
  dispatch_->Send(StagingPinned{work.request.lane, work.request.job.value, nullptr});
  return true;
}

bool Mapper::DoSlice(Unpinning& work, TimeNs /*now*/) {
  if (!work.pinned.UnpinEnd()) return false;
  for (SegmentMemory& memory : work.memory) Unmap(work.uid, std::move(memory));
  return true;
}

}  // namespace headrace::service
