#include "service/rpc/shutdown.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

#include "ipc/base/check.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

// How long dispatch may outlive its own drain deadline before it is waited for no longer.
constexpr TimeNs kDrainGrace = kSecond;
constexpr auto kDrainRetryDelay = 10 * kj::MILLISECONDS;
constexpr auto kEmptyLook = 20 * kj::MILLISECONDS;

}  // namespace

Shutdown::Shutdown(Ports ports, TimeNs drain_timeout_ns, std::function<void()> begun)
    : ports_(ports),
      drain_timeout_ns_(drain_timeout_ns),
      on_begun_(std::move(begun)),
      tasks_(*this) {
  auto begins = kj::newPromiseAndFulfiller<void>();
  begins_ = kj::mv(begins.fulfiller);
  whenever_begun_ = begins.promise.fork();
  auto finished = kj::newPromiseAndFulfiller<int>();
  finished_ = kj::mv(finished.fulfiller);
  exit_code_ = kj::mv(finished.promise);
}

Result<Shutdown::Moving> Shutdown::MoveJobs(std::uint32_t uid, TimeNs patience_ns) {
  if (begun_) return Error(Code::kAlreadyExists, "the service is stopping already");
  HR_CHECK(!ending_ && patience_ns >= 0, patience_ns);
  Moving moving{.sessions = static_cast<std::uint32_t>(ports_.leases.open_count())};
  patience_ns_ = patience_ns;
  Begin();
  ports_.log.info("drain asked by uid {}: {} sessions are open", uid, moving.sessions);
  ports_.peers.SendReliably(DrainPeers{});
  for (const Leases::OpenJob& job : ports_.leases.OpenJobs()) {
    if (job.can_reconnect) {
      ports_.peers.SendReliably(ChangeSetting{
          .job = job.name,
          .owner = job.uid,
          .uid = ::geteuid(),
          .setting = Steering{
              .kind = SteeringKind::kDrain, .value = kDrainToMoveOver, .uid = uid, .node = {}}});
      continue;
    }
    moving.waits.push_back(job.name);
    ports_.leases.ReportEvent(
        Code::kUnavailable, job.job,
        fmt::format("job {} cannot reconnect (HEADRACE_RECONNECT): it ends with this "
                    "service, in {} s at most",
                    job.name, patience_ns / kSecond));
  }
  tasks_.add(AwaitEmpty(MonotonicNow() + patience_ns));
  return moving;
}

kj::Promise<void> Shutdown::AwaitEmpty(TimeNs deadline_ns) {
  return ports_.timer.afterDelay(kEmptyLook).then([this, deadline_ns]() -> kj::Promise<void> {
    if (ending_) return kj::READY_NOW;
    if (ports_.leases.open_count() > 0 && MonotonicNow() < deadline_ns) {
      return AwaitEmpty(deadline_ns);
    }
    BeginDrain("drain");
    return kj::READY_NOW;
  });
}

void Shutdown::OnSignal(const char* name) {
  if (!ending_) return BeginDrain(name);
  ports_.log.warn("a second signal: stopping at once");
  Finish(1);
}

void Shutdown::OnGpuBroken(const std::string& cause) {
  if (std::exchange(drained_code_, kExitGpuBroken) == kExitGpuBroken) return;
  ports_.log.error(
      "{}; the context of that GPU is broken for good, so this service drains and ends with exit "
      "code {}: its supervisor is to start it again",
      cause, kExitGpuBroken);
  if (!ending_) BeginDrain("a broken GPU");
}

void Shutdown::OnDrained() {
  if (ending_) Finish(drained_code_);
}

void Shutdown::Fail(const std::string& cause) {
  ports_.log.error("{}", cause);
  Finish(1);
}

void Shutdown::Begin() {
  if (std::exchange(begun_, true)) return;
  begins_->fulfill();
  on_begun_();
}

void Shutdown::BeginDrain(const char* asked) {
  HR_CHECK(!ending_, asked);
  ending_ = true;
  Begin();
  ports_.log.info("{}: draining {} sessions within {} ms", asked, ports_.leases.open_count(),
                  drain_timeout_ns_ / kMillisecond);
  ports_.peers.SendReliably(DrainPeers{});
  tasks_.add(SendDrain({.deadline_ns = MonotonicNow() + drain_timeout_ns_}));
  const TimeNs bound = drain_timeout_ns_ + kDrainGrace;
  tasks_.add(ports_.timer.afterDelay(bound * kj::NANOSECONDS).then([this, bound] {
    ports_.log.error("not drained after {} ms: stopping anyway", bound / kMillisecond);
    Finish(drained_code_ != 0 ? drained_code_ : 1);
  }));
}

kj::Promise<void> Shutdown::SendDrain(Drain message) {
  if (ports_.dispatch.Send(message)) return kj::READY_NOW;
  return ports_.timer.afterDelay(kDrainRetryDelay).then([this, message] {
    return SendDrain(message);
  });
}

void Shutdown::Finish(int code) { finished_->fulfill(kj::cp(code)); }

void Shutdown::taskFailed(kj::Exception&& exception) { Fail("rpc: " + CauseOf(exception)); }

}  // namespace headrace::service
