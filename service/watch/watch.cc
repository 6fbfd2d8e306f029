#include "service/watch/watch.h"

#include <chrono>
#include <utility>

#include "ipc/sealed_memory.h"
#include "service/plan/planner.h"

namespace headrace::service {
namespace {

// A sum walks the same offset of every rank's segment at once. Some processors tell cache lines
// apart by address bits 12 to 27 only (the way predictor of AMD's Zen): segments 256 MiB apart then
// throw each other out of the cache at every step, and a sum over four takes twice its time. An odd
// number of pages between one segment and the next keeps them apart.
constexpr std::size_t kStaggerStep = 17 * ipc::kPageSize;
constexpr std::size_t kStaggersMax = kStaggerMax / kStaggerStep;

using MadePlan = Result<std::shared_ptr<const plan::Plan>>;

// Null when the plan in force is as good, within the margin.
MadePlan Make(const MakePlan& wish) {
  if (wish.present == nullptr) {
    Result<plan::Plan> made = plan::MakePlan(wish.policy, wish.profile, wish.route, wish.version);
    if (!made) return made.error();
    return std::make_shared<const plan::Plan>(std::move(made).value());
  }
  Result<std::optional<plan::Plan>> made = plan::MakeFasterPlan(
      wish.policy, wish.profile, wish.route, wish.version, *wish.present, wish.margin);
  if (!made) return made.error();
  if (!*made) return std::shared_ptr<const plan::Plan>();
  return std::make_shared<const plan::Plan>(std::move(**made));
}

}  // namespace

Watch::Watch(Wakeable& thread, Door<ControlMessage>& control, ipc::BoardLayout& board,
             EventSink log, const transport::Gpus* gpus)
    : control_(control),
      board_(board),
      gpu_rows_(board, gpus),
      gpus_(gpus),
      log_(std::move(log)),
      inbox_(thread) {}

bool Watch::DoWork(TimeNs) {
  inbox_.TakeAll(messages_);
  for (WatchMessage& message : messages_) {
    std::visit([this](auto& alternative) { Handle(std::move(alternative)); }, message);
  }
  const bool worked = !messages_.empty();
  messages_.clear();
  return worked;
}

void Watch::Handle(MapSegment message) {
  const std::size_t stagger = (1 + segments_mapped_++ % kStaggersMax) * kStaggerStep;
  Result<Mapping> mapping = ipc::MapSealedMemory(message.memory.get(), message.size, stagger);
  if (mapping) mapping->Populate();
  // Control asks for one mapping a session at a time, so its inbox has room.
  const bool sent = control_.Send(
      SegmentMapped{.token = message.token, .memory = ToSegmentMemory(std::move(mapping))});
  HR_CHECK(sent, message.token);
}

void Watch::Handle(MapDeviceSegment message) {
  // As above. The descriptors are closed with the message: the mapping keeps the memory.
  const bool sent = control_.Send(SegmentMapped{.token = message.token, .memory = Import(message)});
  HR_CHECK(sent, message.token);
}

Result<SegmentMemory> Watch::Import(const MapDeviceSegment& message) {
  if (gpus_ == nullptr) return Error(Code::kUnavailable, "this service has no GPU to map it for");
  Result<transport::DeviceImport> import = gpus_->Import(message.handle, message.fds);
  if (!import) return import.error();
  SegmentMemory memory(std::move(import).value());
  gpu_rows_.Add(memory.device(), memory.size());
  return memory;
}

// What is taken over here is unmapped and closed before the board says so.
void Watch::Handle(DiscardSession message) {
  const GpuRows::Uses uses = GpuRows::UsesOf(*message.session);
  message.session.reset();
  gpu_rows_.Remove(uses);
}

void Watch::Handle(DiscardMemory message) {
  const std::int8_t device = message.memory.device();
  const std::uint64_t size = message.memory.size();
  message.memory = {};
  gpu_rows_.Remove(device, size);
}

void Watch::Handle(const MakeScratch& message) {
  ScratchMade made{.job = message.job,
                   .order = message.order,
                   .gpu = message.gpu,
                   .place_bytes = message.place_bytes,
                   .memory = Error(Code::kUnavailable, "this service has no GPU to make it for")};
  if (gpus_ != nullptr) FillScratch(message, made);
  HR_CHECK(dispatch_ != nullptr, message.job.value);
  // Few of these are open, and a dispatch that is too far behind for one has stopped.
  const bool sent = dispatch_->Send(std::move(made));
  HR_CHECK(sent, message.job.value);
}

void Watch::FillScratch(const MakeScratch& message, ScratchMade& made) const {
  const std::uint64_t bytes = message.place_bytes * message.places_count;
  if (message.gpu != transport::kHost) {
    made.memory = ScratchMemory::OnGpu(*gpus_, message.gpu, bytes);
    if (made.memory) return;
    made.instead = made.memory.error().text();
  }
  made.memory = ScratchMemory::OnHost(*gpus_, bytes);
}

// As above.
void Watch::Handle(DiscardScratch) {}

void Watch::Handle(const MakePlan& message) {
  // Control asks for one plan a job at a time, so its inbox has room.
  const bool sent = control_.Send(PlanMade{.token = message.token, .plan = Make(message)});
  HR_CHECK(sent, message.token);
}

void Watch::Handle(const Event& event) {
  log_(event);
  ipc::EventRow row{};
  row.number = ++events_;
  row.at_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  row.code = static_cast<std::uint32_t>(event.code);
  row.job_id = event.job.value;
  ipc::SetText(row.text, event.text);
  ipc::WriteRow(board_.events[(row.number - 1) % ipc::kEventRowsMax], row);
}

}  // namespace headrace::service
