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
             EventSink log)
    : control_(control), board_(board), log_(std::move(log)), inbox_(thread) {}

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
  const bool sent =
      control_.Send(SegmentMapped{.token = message.token, .mapping = std::move(mapping)});
  HR_CHECK(sent, message.token);
}

// The argument's destructor unmaps and closes.
void Watch::Handle(DiscardSession) {}
void Watch::Handle(DiscardMapping) {}

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
