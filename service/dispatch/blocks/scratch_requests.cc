#include "service/dispatch/blocks/scratch_requests.h"

#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// Drivers give a GPU's memory in multiples of it.
constexpr std::uint64_t kGpuUnit = std::uint64_t{2} << 20;

std::uint64_t HeldBytes(const MakeScratch& request) {
  const std::uint64_t bytes = request.place_bytes * request.places_count;
  if (request.gpu == transport::kHost) return bytes;
  return (bytes + kGpuUnit - 1) / kGpuUnit * kGpuUnit;
}

}  // namespace

void ScratchRequests::BookHostScratch(Job& job) {
  Job::HostScratch& host = job.host_scratch;
  if (!host.memory || std::exchange(host.is_booked, true)) return;
  const std::optional<SessionId> session = job.BookedOn();
  HR_CHECK(session.has_value(), job.id().value);  // a rank of this node has posted
  // Once a job.
  rpc_.Send(BookScratch{.session = *session,
                        .bytes = host.memory.size(),
                        .request = UseHostScratch{.job = job.id()}});
}

void ScratchRequests::Ask(Job& job, schedule::TrafficClass traffic_class) {
  Job::GpuScratch& all = job.gpu_scratch[static_cast<std::size_t>(traffic_class)];
  for (std::size_t place = 0; place < all.size(); ++place) {
    const Scratch::Request wanted = all[place].TakeScratchRequest();
    const bool for_factors = place == Job::kFactorsPlace;
    MakeScratch request{.job = job.id(),
                        .uid = job.owner_uid(),
                        .traffic_class = traffic_class,
                        .place_bytes = wanted.place_bytes,
                        .places_count = wanted.places_count,
                        .for_factors = for_factors};
    // That of the host stands first.
    if (!for_factors)
      request.gpu = static_cast<std::int8_t>(transport::kHost + static_cast<int>(place));
    if (request.place_bytes == 0) continue;
    const std::optional<SessionId> session = job.BookedOn();
    HR_CHECK(session.has_value(), job.id().value);  // a rank of this node has posted
    // Once for each size, which doubles. The blocks wait until it is answered.
    rpc_.Send(BookScratch{.session = *session, .bytes = HeldBytes(request), .request = request});
  }
}

void ScratchRequests::OnStagingWanted(Job* job, const StagingWanted& message) {
  if (!message.pin) return mapping_.Send(UnpinStaging{message.lane, message.job});
  const std::optional<SessionId> session = job == nullptr ? std::nullopt : job->BookedOn();
  if (!session) {
    return lanes_.out(message.lane)
        .Send(StagingPinned{message.lane, message.job.value,
                            Error(Code::kCancelled, "its job is over on this node")});
  }
  // A lane asks once a group.
  rpc_.Send(BookScratch{
      .session = *session,
      .bytes = message.memory.size(),
      .request = PinStaging{message.lane, message.job, job->owner_uid(), message.memory}});
}

std::optional<Failure> ScratchRequests::OnBooked(const Job* job, const ScratchBooked& message) {
  if (const auto* staging = std::get_if<PinStaging>(&message.request)) {
    if (message.status && job != nullptr && !job->failed) {
      mapping_.Send(*staging);
      return {};
    }
    // What was booked has been returned with the job's session.
    const Error over(Code::kCancelled, "its job is over on this node");
    lanes_.out(staging->lane)
        .Send(StagingPinned{staging->lane, staging->job.value,
                            message.status ? over : message.status.error()});
    return {};
  }
  if (job == nullptr) return {};
  if (!message.status) {
    const bool of_host = std::holds_alternative<UseHostScratch>(message.request);
    const Error error = message.status.error().Within(of_host ? "sum for ranks of other nodes"
                                                              : "take GPU memory to other nodes");
    return Failure{error.code(), error.text()};
  }
  const auto* const make = std::get_if<MakeScratch>(&message.request);
  if (make != nullptr && !job->failed) mapping_.Send(*make);
  return {};
}

void ScratchRequests::Add(Job& job, ScratchMade made) {
  HR_CHECK(made.gpu >= transport::kHost && static_cast<std::size_t>(made.gpu + 1) <= kRailsMax,
           static_cast<int>(made.gpu));
  job.gpu_scratch[static_cast<std::size_t>(made.traffic_class)]
                 [made.for_factors ? Job::kFactorsPlace : static_cast<std::size_t>(made.gpu + 1)]
                     .Add(made.place_bytes, std::move(made.memory).value());
}

void ScratchRequests::Discard(Job& job) {
  bool asked = false;
  for (Job::GpuScratch& of_class : job.gpu_scratch) {
    for (Scratch& scratch : of_class) {
      asked |= scratch.was_asked();
      std::vector<ScratchMemory> memory = scratch.PopAll();
      if (memory.empty()) continue;
      mapping_.Send(DiscardScratch{std::move(memory), job.owner_uid()});
    }
  }
  if (asked) mapping_.Send(CancelScratch{job.id()});
}

}  // namespace headrace::service
