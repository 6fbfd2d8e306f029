#include "service/dispatch/blocks/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/sealed_memory.h"

namespace headrace::service {
namespace {

// The first iterations tell what the first real plan is made for; afterwards drift is looked for
// once a window.
constexpr std::uint64_t kFirstTimes = 3;
constexpr std::uint64_t kSecondTimes = 6;
// Iterations after one in which a rail was lost or came back; even a plan of one block
// has enough samples then.
constexpr std::uint64_t kTimesOfRails = 6;
static_assert(kTimesOfRails >= LaneSamples::kSamplesMin);
// One in so many later iterations is shown on the board.
constexpr std::uint64_t kShownEvery = 4;

// Ranks of one node hand in GPUs' memory, all of them, or the host's.
std::optional<Failure> CheckMemory(const Job& job, const Session& session) {
  const std::int8_t device = session.gradients()->device;
  for (std::uint32_t rank = 0; rank < job.world_size(); ++rank) {
    const Session* const other = job.ranks()[rank].session.get();
    if (other == nullptr || other == &session || other->gradients() == nullptr) continue;
    const std::int8_t others = other->gradients()->device;
    if ((device == transport::kHost) == (others == transport::kHost)) continue;
    return Failure{Code::kMismatch,
                   fmt::format("{} has its gradients {}, {} {}: the ranks of a node hand in GPUs' "
                               "memory, all of them, or the host's",
                               job.DescribeRank(rank), DescribeMemory(others),
                               job.DescribeRank(session.identity().rank), DescribeMemory(device))};
  }
  return {};
}

}  // namespace

std::optional<Failure> Plans::SetLayout(Job& job, Session& session,
                                        const struct SetLayout& message) {
  if (Status status = session.SetLayout(message.first, message.layout, message.residuals);
      !status) {
    return Failure{
        status.error().code(),
        fmt::format("{}: {}", job.DescribeRank(session.identity().rank), status.error().text())};
  }
  if (job.gradients) return CheckMemory(job, session);
  job.gradients = std::make_unique<Gradients>(message.layout, job.world_size());
  recorder_.SetLayout(job);
  if (job.failure) job.gradients_failure = job.failure;
  rows_.Open(job);
  return {};
}

// Which server has an element follows from its place, and is reckoned from that of its transfer's
// first one: only where there are no gaps between is it the same one whatever a plan cuts.
std::size_t Plans::RunsMaxOf(const Job& job) {
  const bool served = job.nodes() != nullptr && job.nodes()->servers_count > 0;
  return served ? 1 : transport::kRunsMax;
}

// Servers keep what they leave out for as long as their links of an epoch.
void Plans::AnnounceServersResiduals(Job& job, const plan::Plan& plan) {
  const bool served = job.nodes() != nullptr && job.nodes()->servers_count > 0;
  if (!served || job.restarts() == 0 || job.residuals.servers_announced) return;
  const auto by_servers = [](const plan::CodecRun& run) {
    return HasBlocks(run.codec) && run.codec.kind != Codec::kRandomK;
  };
  if (std::ranges::none_of(plan.codecs, by_servers)) return;
  job.residuals.servers_announced = true;
  events_.Announce(job, Code::kOk,
                   "what its servers had left out of its sums before it came back is lost: at most "
                   "what one encoding of each sum left out; ranks keep theirs");
}

// Memory of the job's own is not touched before it is used.
std::optional<Failure> Plans::MakeResiduals(Job& job, const plan::Plan& plan) {
  if (job.residuals.memory != nullptr) return {};
  for (const std::uint32_t rank : job.local()) {
    const Session* const session = job.ranks()[rank].session.get();
    if (session == nullptr || session->gradients() == nullptr) continue;
    job.residuals.memory = session->gradients()->residuals;
    if (job.residuals.memory == nullptr) continue;
    job.residuals.of_rank = rank;
    job.residuals.factors_rank = session->gradients()->factors_rank;
    job.residuals.factor_offsets = session->gradients()->factor_offsets;
    job.residuals.left_out.Reset(job.gradients->count(), true);
    if (const std::uint32_t before = Recorder::WorldBefore(job);
        before != 0 && before != job.world_size()) {
      events_.Announce(
          job, Code::kOk,
          fmt::format(
              "its world size is {} and was {}: what encodings had left out is kept on this "
              "node; that of nodes that are gone is lost",
              job.world_size(), before));
    }
    return {};
  }
  const bool loses =
      std::ranges::any_of(plan.codecs, [](const plan::CodecRun& run) { return Loses(run.codec); });
  if (!loses) return {};
  Result<Mapping> memory = Mapping::Anonymous(job.gradients->bytes());
  if (!memory) return Failure{memory.error().code(), memory.error().text()};
  job.residuals.own = std::move(memory).value();
  job.residuals.memory = job.residuals.own.data();
  job.residuals.left_out.Reset(job.gradients->count(), false);
  Book(job, job.gradients->bytes());
  if (job.restarts() > 0) {
    events_.Announce(job, Code::kOk,
                     "what its encodings left out before it came back is lost: no rank here keeps "
                     "it (Session.layout does where compress was given)");
  }
  return {};
}

void Plans::PinResiduals(Job& job, const plan::Plan& plan) {
  Residuals& residuals = job.residuals;
  const bool wanted = std::ranges::any_of(plan.codecs, [&job](const plan::CodecRun& run) {
    return (job.device_codecs >> run.codec.kind & 1U) != 0;
  });
  if (!wanted || residuals.memory == nullptr || !job.HasGradientsOnGpus()) return;
  if (residuals.pinning != Residuals::Pinning::kNotAsked) return;
  residuals.pinned_ahead = reinterpret_cast<std::uintptr_t>(residuals.memory) % ipc::kPageSize;
  const std::size_t size = residuals.pinned_ahead + job.gradients->bytes();
  const std::size_t pages = (size + ipc::kPageSize - 1) / ipc::kPageSize;
  residuals.pinning = Residuals::Pinning::kUnderWay;
  mapping_.Send(
      service::PinResiduals{job.id(),
                            job.owner_uid(),
                            {residuals.memory - residuals.pinned_ahead, pages * ipc::kPageSize}});
}

void Plans::ResidualsPinned(Job& job, struct ResidualsPinned message) {
  Residuals& residuals = job.residuals;
  HR_CHECK(residuals.IsBeingPinned(), job.id().value);
  const bool cancelled = residuals.pinning == Residuals::Pinning::kCancelled;
  residuals.pinning = message.pinned ? Residuals::Pinning::kDone : Residuals::Pinning::kOver;
  if (message.pinned) {
    residuals.pinned = std::move(message.pinned).value();
    return;
  }
  if (cancelled) return;
  events_.Report(
      job, Code::kUnavailable,
      fmt::format("its gradients are compressed by the host and not by GPUs, since these "
                  "do not reach what encodings leave out: {}",
                  message.pinned.error().text()));
}

std::optional<Failure> Plans::MakeFactors(Job& job, const plan::Plan& plan) {
  const Result<std::uint64_t> bytes = job.factors.MakeRoom(plan, job.gradients->layout());
  if (!bytes) return Failure{bytes.error().code(), bytes.error().text()};
  if (*bytes > 0) Book(job, *bytes);
  return {};
}

void Plans::Book(Job& job, std::uint64_t bytes) {
  if (const auto session = job.BookedOn()) rpc_.Send(ResidualsAllocated{*session, bytes});
}

void Plans::Offer(Job& job, const PlanOffer& message, TimeNs now) {
  // One that could not be formed has failed, and has no use for a plan.
  if (!job.gradients || job.gradients_failure || !job.formed()) return;
  HR_CHECK(message.plan->blocks.size() > 0, job.id().value);
  if (!job.measured.times) {
    job.measured.times =
        std::make_unique<IterationTimes>(job.gradients->count(), job.local().size());
    const bool several = job.nodes() != nullptr;
    job.measured.samples.resize(several ? 1 + job.nodes()->costs.size() : 1);
  }
  const std::uint64_t begun = job.gradients->Offer(
      std::make_shared<const WirePlan>(
          MakeWirePlan(message.plan, message.hash, job.gradients->layout(), RunsMaxOf(job))),
      kSwitchSlack);
  // One answer an offer: peers, which has no time to take them, offers nothing either.
  peers_.Send(PlanAck{job.id(), message.plan->version, begun});
  rows_.ShowPlan(job);
  rows_.ShowHead(job, now);
}

std::optional<Failure> Plans::AcceptSwitch(Job& job, const PlanSwitch& message, TimeNs now) {
  if (!job.gradients || job.gradients_failure) return {};
  if (!job.gradients->AcceptSwitch(message.version, message.from_iteration,
                                   message.iterations_before)) {
    return Failure{
        Code::kInternal,
        fmt::format("plan {} cannot begin with iteration {}: it was not offered here, or "
                    "the iteration has begun",
                    message.version, message.from_iteration)};
  }
  const plan::Plan& plan = *job.gradients->offered()->plan;
  if (auto failure = MakeResiduals(job, plan)) return failure;
  PinResiduals(job, plan);
  AnnounceServersResiduals(job, plan);
  if (auto failure = MakeFactors(job, plan)) return failure;
  Advance(job, now);
  rows_.ShowPlan(job);
  return {};
}

// The loop sees the head once more after each block that began: the last one of an iteration may
// make the next plan due.
void Plans::Advance(Job& job, TimeNs now) {
  Gradients& gradients = *job.gradients;
  if (!job.formed() || job.gradients_failure) return;
  while (true) {
    if (gradients.SwitchIfDue()) OnSwitched(job);
    if (IsHeldBack(job, now)) break;
    if (gradients.Head() == nullptr || gradients.Missing(job.local_ranks())) break;
    if (gradients.AwaitsScatters() || !blocks_.HasRoom(job)) break;
    Operation* const operation = gradients.Begin();
    if (operation == nullptr) break;
    HR_CHECK(operation->index < operation->plan->blocks.size(), operation->index);
    Begin(job, *operation, now);
  }
  rows_.ShowHead(job, now);
}

void Plans::OnSwitched(Job& job) {
  // A plan without a limit moves one block at a time on each lane, as its simulation does.
  const std::uint32_t most = job.gradients->plan()->plan->in_flight_max;
  blocks_.SetPlannedInFlightMax(job.id(), std::max(most, 1U));
  rows_.OnSwitched(job);
}

bool Plans::IsHeldBack(Job& job, TimeNs now) {
  Gradients& gradients = *job.gradients;
  if (gradients.head_index() != 0) return false;
  settings_.AtBorder(job, SettingChanges::NextOperation(job), now);
  if (job.in_force.paused || !job.steering.MayBeginIteration(gradients.head_iteration()))
    return true;
  if (job.hold.until_ns <= now) return false;
  next_release_ = std::min(next_release_, job.hold.until_ns);
  const bool could = gradients.Head() != nullptr && !gradients.Missing(job.local_ranks());
  if (could && job.hold.since_ns == 0) job.hold.since_ns = now;
  return true;
}

void Plans::Begin(Job& job, Operation& operation, TimeNs now) {
  HR_CHECK(job.measured.times != nullptr && !job.local().empty(), job.id().value);
  operation.first_rank = job.local().front();
  operation.posts.ranks = job.local_ranks();
  operation.posts.opened_ns = now;
  operation.spec.device = job.DeviceOf(operation, operation.first_rank);
  recorder_.ItemOpened(job, operation);
  if (operation.index == 0) {
    job.measured.times->ResizeBlocks(operation.iteration, operation.plan->blocks.size());
  }
  job.measured.times->block(operation.iteration, operation.index).ready_ns = now;
  blocks_.Begin(job, operation, now);
}

void Plans::SetHold(Job& job, const Hold& hold, TimeNs now) {
  job.hold = hold;
  if (job.gradients) Advance(job, now);
}

void Plans::Release(const Jobs& jobs, TimeNs now) {
  next_release_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->hold.until_ns == 0 || !job->gradients) continue;
    if (job->hold.until_ns <= now) {
      const bool held =
          job->hold.reason == ipc::WaitReason::kInterleaved && job->hold.since_ns != 0;
      if (held) recorder_.Held(*job, now - job->hold.since_ns);
      job->hold = {};
    }
    Advance(*job, now);
  }
}

void Plans::OnMoved(Job& job, std::uint8_t lane) {
  lanes_.OnMoved(job, lane);
  if (!job.gradients || !job.measured.times) return;
  const bool settled = job.measured.rails_changed_in == 0;
  job.measured.rails_changed_in = job.gradients->head_iteration();
  if (settled) job.measured.rails_unsettled_in = job.measured.rails_changed_in;
}

std::uint64_t Plans::ReportDue(Job& job, std::uint64_t iteration) {
  if (job.measured.rails_changed_in != 0) {
    // What was under way then has waited, and was sent again.
    if (iteration == job.measured.rails_changed_in) Lanes::ForgetRails(job);
    const bool overdue = iteration >= job.measured.rails_unsettled_in + IterationTimes::kWindow;
    const bool due = overdue || iteration >= job.measured.rails_changed_in + kTimesOfRails;
    return due ? kTimesOfRails : 0;
  }
  if (iteration == kFirstTimes || iteration == kSecondTimes) return kFirstTimes;
  return iteration % IterationTimes::kWindow == 0 ? IterationTimes::kWindow : 0;
}

void Plans::FreeFactors(Job& job) {
  const WirePlan* const offered = job.gradients->offered();
  const std::uint64_t bytes = job.factors.FreeRoom(
      *job.gradients->plan()->plan, offered == nullptr ? nullptr : offered->plan.get());
  if (bytes > 0 && job.booked_on) rpc_.Send(ResidualsFreed{*job.booked_on, bytes});
}

void Plans::EndIteration(Job& job, std::uint64_t iteration) {
  FreeFactors(job);
  if (const auto text = recorder_.NotFiniteText(job)) {
    events_.Report(job, Code::kInvalidArgument, *text);
  }
  job.measured.times->EndIteration(iteration);
  if (const std::uint64_t count = ReportDue(job, iteration); count != 0) {
    NodeTimes times = job.measured.times->Median(count);
    job.measured.times->Record(times);
    const bool rails_changed = job.measured.rails_changed_in != 0;
    std::vector<transport::CostLine> costs = Lanes::CostsOf(job);
    std::vector<CodecCost> codecs = lanes_.CodecCostsOf(job, costs);
    // Peers that is that far behind has the last ones.
    const bool sent = peers_.TrySend(TimesSeen{.job = job.id(),
                                               .times = std::move(times),
                                               .costs = std::move(costs),
                                               .codecs = std::move(codecs),
                                               .rails_changed = rails_changed});
    if (sent && rails_changed) job.measured.rails_changed_in = 0;
  }
  if (iteration > 2 * kShownEvery && iteration % kShownEvery != 0) return;
  rows_.ShowPlan(job);
  rows_.ShowBlocks(job, iteration);
}

}  // namespace headrace::service
