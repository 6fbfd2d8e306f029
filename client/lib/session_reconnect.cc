// How a session comes back after its service went away, or its job failed.
//
// The old life ends first, for everybody in this process; then attempts follow one another until
// one has gone all the way: attached, everything handed in, every other rank there. An attempt that
// does not get so far leaves nothing behind but its cause.
#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "client/lib/disconnected_control.h"
#include "client/lib/session.h"

namespace headrace::client {
namespace {

constexpr TimeNs kFirstPause = 10 * kMillisecond;
constexpr TimeNs kPauseMax = 500 * kMillisecond;
// The service ends the barrier in time, and names who is missing; that answer needs some time, too.
constexpr TimeNs kAnswerMargin = kSecond;
constexpr TimeNs kLeastBound = 10 * kMillisecond;
// A service that is asked to let a process in says after 2 s for whom it waits.
constexpr TimeNs kQuorumAnswerBound = 4 * kSecond;
// For how long a process that joins waits to be let in, where nothing else is said.
constexpr TimeNs kJoinDefault = 30 * kSecond;
// Those who go on meet within that time, or that many times what handing everything in has taken.
constexpr TimeNs kSettleMin = 10 * kSecond;
constexpr TimeNs kSettleFactor = 4;
constexpr std::uint32_t kTimeoutMsMax = 24U * 3600 * 1000;
// So many fit a message whatever their names are.
constexpr std::size_t kTensorsAtOnceMax = 4096;

// What another attempt can mend: the service is not up yet; ranks of the old life are still to go,
// with the memory that is booked for them; the others have not come yet.
bool TimeMends(Code code) {
  switch (code) {
    case Code::kUnavailable:
    case Code::kBusy:
    case Code::kTimeout:
    case Code::kPeerLost:
    case Code::kAlreadyExists:
    case Code::kExhausted:
      return true;
    default:
      return false;
  }
}

TimeNs Left(TimeNs deadline) { return deadline == kNever ? kNever : deadline - MonotonicNow(); }

// At the end of its scope the next thread may reconnect.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken) : taken_(taken), mine_(!taken.exchange(true)) {}
  ~Turn() {
    if (mine_) taken_.store(false);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& taken_;
  const bool mine_;
};

}  // namespace

Status Session::Join() {
  const Error nothing(Code::kUnavailable,
                      fmt::format("this process has not joined job {} yet", job()));
  control_ = std::make_unique<DisconnectedControl>(nothing);
  arrays_ = std::make_unique<Arrays>(*control_, operations_);
  TimeNs bound_ns = reconnect_ns_ == 0 ? kJoinDefault : reconnect_ns_;
  if (role_ == HR_ROLE_SPARE) bound_ns = kNever;
  return RetryAttempts(bound_ns, shrink_ ? *shrink_ : ShrinkRules{});
}

Status Session::Reattach(TimeNs timeout_ns, const std::optional<ShrinkRules>& shrink,
                         bool if_lost) {
  const TimeNs bound_ns = timeout_ns == 0 ? reconnect_ns_ : timeout_ns;
  if (bound_ns == 0) {
    return Error(
        Code::kInvalidArgument,
        "reconnecting is off: give a timeout, or set HEADRACE_RECONNECT to the seconds for "
        "which a service is waited for");
  }
  const Turn turn(reconnecting_);
  if (!turn.mine()) return Error(Code::kBusy, "another thread is reconnecting this session");
  if (Status status = if_lost ? CheckLost() : Status(); !status) return status;
  const Error cause(
      Code::kUnavailable,
      fmt::format("rank {} of job {} gave up what was open, to reconnect", rank(), job()));
  // By this whoever sleeps in a call wakes up, and leaves.
  operations_.Lose(cause);
  call_gate_.Close();
  EndLife(cause);
  Status status = RetryAttempts(bound_ns < 0 ? kNever : bound_ns, shrink);
  call_gate_.Open();
  return status;
}

Status Session::CheckLost() const {
  if (!operations_.CheckThere() || operations_.has_failed() || !control_->IsThere()) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("nothing is lost: the service at {} (pid {}) is there, and no operation "
                           "of rank {} has failed",
                           request_.socket_path, service_pid(), rank()));
}

void Session::EndLife(const Error& cause) {
  operations_.Lose(cause);
  arrays_->SettleAll();
  if (gpus_.HasWords()) gpus_.LetStreamsPass(kStreamsPassMax);
  // The connection goes, and by that the service learns that the lease has ended.
  control_ = std::make_unique<DisconnectedControl>(cause);
  arrays_->Renew(*control_);
}

std::string Session::DescribeAttempt() const {
  if (role_ != HR_ROLE_RANK) return fmt::format("join job {}", job());
  return fmt::format("reconnect rank {} of job {}", rank(), job());
}

Status Session::RetryAttempts(TimeNs timeout_ns, const std::optional<ShrinkRules>& shrink) {
  const TimeNs deadline = timeout_ns == kNever ? kNever : MonotonicNow() + timeout_ns;
  for (TimeNs pause = kFirstPause;; pause = std::min(2 * pause, kPauseMax)) {
    const Status status = Attempt(deadline, shrink);
    if (status.ok()) return {};
    EndLife(status.error());
    if (!TimeMends(status.code())) return status.error().Within(DescribeAttempt());
    if (Left(deadline) <= pause) {
      return Error(Code::kTimeout, fmt::format("{}: not within {} ms: {}", DescribeAttempt(),
                                               timeout_ns / kMillisecond, status.error().text()));
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
  }
}

Status Session::Attempt(TimeNs deadline, const std::optional<ShrinkRules>& shrink) {
  Result<ipc::Channel::Created> created = ipc::Channel::Create();
  if (!created) return created.error();
  UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return SystemError("create an eventfd", errno);
  // What earlier operations ended with is read from the old channel, so that one goes last.
  operations_.Renew(created->channel.layout(), doorbell.get());
  gpus_.Renew(created->channel.layout());
  endpoints_.channel = std::move(created->channel);
  endpoints_.doorbell = std::move(doorbell);
  AttachRequest request = request_;
  request.rank = rank();
  request.world_size = world_size();
  if (membership_.generation != 0) request.members = membership_.members;
  if (shrink) {
    request.quorum.emplace(QuorumRequest{.role = role_,
                                         .member = membership_.members[rank()],
                                         .membership = membership_,
                                         .places = KeptPlaces(),
                                         .rules = *shrink});
  }
  request.after_epoch = epoch_;
  request.deadline_ns = deadline;
  const TimeNs least_ns = role_ != HR_ROLE_RANK ? kQuorumAnswerBound : kLeastBound;
  request.call_timeout_ns = std::clamp(Left(deadline), std::min(least_ns, request_.call_timeout_ns),
                                       request_.call_timeout_ns);
  Result<Attached> attached = attach_(request, created->fd.get(), endpoints_.doorbell.get(), *this);
  if (!attached) return attached.error();
  const std::optional<Quorum> quorum = attached->quorum;
  Adopt(std::move(attached).value());
  // From here on it is a member, for others too, whether or not they meet.
  if (quorum && role_ != HR_ROLE_RANK) {
    role_ = HR_ROLE_RANK;
    AdoptMembership(quorum->membership, quorum->own);
  }
  members_wait_.store(false, std::memory_order_relaxed);
  const TimeNs begin = MonotonicNow();
  if (Status status = RegisterAgain(); !status) return status;
  // One that was lost after the decision is found out by asking again.
  const TimeNs settled =
      MonotonicNow() + std::max(kSettleMin, kSettleFactor * (MonotonicNow() - begin));
  if (Status status = AwaitOthers(quorum ? std::min(deadline, settled) : deadline); !status) {
    return status;
  }
  control_->BoundCalls(request_.call_timeout_ns);
  if (quorum) {
    AdoptMembership(quorum->membership, quorum->own);
    // Whoever led the job before may be gone.
    if (!quorum->rendezvous.empty()) request_.rendezvous = quorum->rendezvous;
  }
  return {};
}

void Session::OnPlaces(std::string places) {
  const std::lock_guard lock(places_mutex_);
  places_ = std::move(places);
}

std::string Session::KeptPlaces() {
  const std::lock_guard lock(places_mutex_);
  return places_;
}

void Session::AdoptMembership(const Membership& membership, std::uint32_t own) {
  const auto place = std::ranges::find(membership.members, own);
  rank_.store(static_cast<std::uint32_t>(place - membership.members.begin()),
              std::memory_order_relaxed);
  world_size_.store(static_cast<std::uint32_t>(membership.members.size()),
                    std::memory_order_relaxed);
  membership_ = membership;
}

Status Session::RegisterAgain() {
  std::lock_guard lock(mutex_);
  std::vector<hr_segment*> segments;
  for (const auto& [handle, segment] : segments_) segments.push_back(segment.get());
  std::sort(segments.begin(), segments.end(),
            [](const hr_segment* one, const hr_segment* other) { return one->id < other->id; });
  for (hr_segment* segment : segments) {
    if (Status status = RegisterAgain(*segment); !status) return status;
  }
  if (Status status = RegisterTensorsAgain(); !status) return status;
  return SetLayoutAgain();
}

Status Session::RegisterAgain(hr_segment& segment) {
  if (segment.device < 0) {
    const auto id = control_->RegisterSegment(segment.memory.fd.get(), segment.size);
    if (id) segment.id = *id;
    return id ? Status() : Status(id.error());
  }
  Result<transport::DeviceGrant> grant = Error(Code::kInternal, "no grant");
  if (segment.gpu_memory != nullptr) {
    grant = segment.gpu_memory->arena().Grant();
  } else {
    grant = gpus_.Grant(reinterpret_cast<transport::CuAddress>(segment.address),  // NOLINT
                        segment.size);
  }
  if (!grant) return grant.error();
  const auto id = control_->RegisterDeviceSegment(grant->handle, grant->fds);
  if (id) segment.id = *id;
  return id ? Status() : Status(id.error());
}

// In the order of their numbers, so that those in a row are so again.
Status Session::RegisterTensorsAgain() {
  std::vector<hr_tensor*> tensors;
  for (const auto& [handle, tensor] : tensors_) tensors.push_back(tensor.get());
  std::sort(tensors.begin(), tensors.end(),
            [](const hr_tensor* one, const hr_tensor* other) { return one->id < other->id; });
  for (std::size_t begin = 0; begin < tensors.size(); begin += kTensorsAtOnceMax) {
    const std::size_t count = std::min(kTensorsAtOnceMax, tensors.size() - begin);
    std::vector<TensorSpec> specs;
    for (std::size_t i = begin; i < begin + count; ++i) {
      specs.push_back(tensors[i]->spec);
      specs.back().segment = tensors[i]->segment->id;
    }
    const Result<std::uint32_t> first = control_->RegisterTensors(specs);
    if (!first) return first.error();
    for (std::size_t i = 0; i < count; ++i) {
      tensors[begin + i]->id = *first + static_cast<std::uint32_t>(i);
    }
  }
  return {};
}

Status Session::SetLayoutAgain() {
  if (!layout_request_) return {};
  for (TensorSpec& spec : layout_request_->specs) spec.segment = layout_request_->segment->id;
  if (layout_request_->residuals_segment != nullptr) {
    layout_request_->notice.residuals_segment = layout_request_->residuals_segment->id;
  }
  const Result<std::uint32_t> first = Announce(layout_request_->specs, layout_request_->notice);
  if (!first) return first.error();
  if (layout_ != nullptr) layout_->layout.Renew(*first);
  return {};
}

Status Session::AwaitOthers(TimeNs deadline) {
  const TimeNs left = std::max(Left(deadline), kLeastBound);
  ipc::Record barrier;
  barrier.kind = static_cast<std::uint8_t>(Collective::kBarrier);
  barrier.dtype = static_cast<std::uint8_t>(DType::kUInt8);
  barrier.reduction = static_cast<std::uint8_t>(Reduction::kSum);
  if (deadline != kNever) {
    barrier.timeout_ms =
        static_cast<std::uint32_t>(std::min<TimeNs>(left / kMillisecond, kTimeoutMsMax));
  }
  const Result<std::uint64_t> posted = operations_.Post(barrier);
  if (!posted) return posted.error();
  const Result<bool> ended =
      operations_.WaitForEnd(*posted, deadline == kNever ? kNever : left + kAnswerMargin);
  if (!ended) return ended.error();
  if (!*ended) {
    return Error(Code::kTimeout, fmt::format("the service (pid {}) took this rank in, and does not "
                                             "say whether the others have come: see whether it is "
                                             "stopped",
                                             service_pid()));
  }
  const ipc::Outcome outcome = operations_.OutcomeOf(*posted);
  if (outcome.code == Code::kOk) return {};
  return Error(outcome.code, "waiting for the other ranks: " + outcome.text);
}

}  // namespace headrace::client
