#include "client/lib/connection_loop.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>

#include "client/lib/loss.h"
#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"

namespace headrace::client {
namespace {

// The service hands no descriptors to clients.
constexpr unsigned kFdsPerMessageMax = 2;
// Kinds of notices, as client.capnp numbers them.
constexpr std::uint8_t kNoticeEnded = 1;
constexpr std::uint8_t kNoticeMembersWait = 2;
constexpr std::uint8_t kNoticePlaces = 3;

Error ErrorOf(const kj::Exception& exception, const std::string& service, bool stops) {
  const std::string text = CauseInForeignText(exception.getDescription().cStr());
  switch (exception.getType()) {
    case kj::Exception::Type::DISCONNECTED:
      return LossOf(service, stops);
    case kj::Exception::Type::OVERLOADED:
      return Error(Code::kBusy, text);
    case kj::Exception::Type::UNIMPLEMENTED:
      return Error(Code::kVersionMismatch,
                   text + ": the service does not know this call; it is not of version " +
                       HEADRACE_VERSION + " (protocol " + std::to_string(schema::PROTOCOL_VERSION) +
                       ") as this library is: update the service");
    default:
      return Error(Code::kInternal, text);
  }
}

// kj ignores SIGPIPE for the whole process when its first loop is made. That is the program's to
// decide; the loop's own thread blocks all signals and needs nothing.
kj::AsyncIoContext SetupLoop() {
  struct sigaction before {};
  ::sigaction(SIGPIPE, nullptr, &before);
  kj::AsyncIoContext io = kj::setupAsyncIo();
  ::sigaction(SIGPIPE, &before, nullptr);
  return io;
}

}  // namespace

void PrintFrom(const std::string& who, const char* text) {
  if (*text != '\0') fmt::print(stderr, "headrace: {}: {}\n", who, text);
}

std::thread ConnectionLoop::StartThread() {
  // The thread inherits the mask: the program's handlers run on its own threads only.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([this] { Run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

Status ConnectionLoop::Call(std::string_view doing, Start start, Patience patience) {
  Pending pending{.start = std::move(start), .patience = patience};
  std::unique_lock lock(mutex_);
  if (loss_) return loss_->Within(doing);
  if (stopping_) return Error(Code::kUnavailable, "the session is being closed");
  inbox_.push_back(&pending);
  lock.unlock();
  Ring();
  lock.lock();
  ended_.wait(lock, [&pending] { return pending.status.has_value(); });
  if (pending.status->ok()) return {};
  return pending.status->error().Within(doing);
}

void ConnectionLoop::Finish(Pending& pending, Status status) {
  std::lock_guard lock(mutex_);
  HR_CHECK(!pending.status.has_value());  // each call ends once
  pending.status = std::move(status);
  ended_.notify_all();  // under the lock: `pending` is gone as soon as its owner sees the status
}

kj::Promise<void> ConnectionLoop::RunCall(Pending& pending, Wire& wire) {
  auto ender = kj::heap<Ender>(*this, pending);
  Ender& end = *ender;
  return kj::evalNow([&pending, &wire, &end] { return pending.start(wire, end.status); })
      .exclusiveJoin(AwaitLate(wire, end.status, pending.patience, 0, 0))
      .catch_([this, &end](kj::Exception&& exception) { end.status = CauseOf(exception); })
      .attach(kj::mv(ender));
}

kj::Promise<void> ConnectionLoop::AwaitLate(Wire& wire, Status& status, Patience patience,
                                            TimeNs waited_ns, std::uint64_t mapped_bytes) {
  const TimeNs step_ns = call_timeout_ns_.load(std::memory_order_relaxed);
  return wire.timer.afterDelay(step_ns * kj::NANOSECONDS)
      .then([this, &wire, &status, patience, waited_ns, mapped_bytes,
             step_ns]() -> kj::Promise<void> {
        const TimeNs so_far_ns = waited_ns + step_ns;
        const auto give_up = [this, &wire, &status, so_far_ns] {
          const Error standstill = StandstillOf(service_, so_far_ns);
          // Who was not let in yet has nothing to lose.
          status = wire.session ? standstill : Error(Code::kTimeout, standstill.text());
          if (wire.session) Disconnect(standstill);
        };
        const TimeNs deadline_ns = deadline_ns_.load(std::memory_order_relaxed);
        const bool is_over = deadline_ns != kNever && MonotonicNow() >= deadline_ns;
        if (patience == Patience::kCallTimeout || is_over) {
          give_up();
          return kj::READY_NOW;
        }
        return AskForProgress(wire, AnswerMargin(step_ns))
            .then([this, &wire, &status, patience, so_far_ns, mapped_bytes,
                   give_up](std::uint64_t bytes) -> kj::Promise<void> {
              if (bytes > mapped_bytes) return AwaitLate(wire, status, patience, so_far_ns, bytes);
              give_up();
              return kj::READY_NOW;
            });
      });
}

kj::Promise<std::uint64_t> ConnectionLoop::AskForProgress(Wire& wire, TimeNs timeout_ns) {
  // A service that does not know the question, or does not answer it, has got on with nothing.
  return wire.timer
      .timeoutAfter(timeout_ns * kj::NANOSECONDS, wire.session->registrationRequest().send())
      .then([](auto&& answer) { return answer.getBytes(); },
            [](kj::Exception&&) { return std::uint64_t{0}; });
}

kj::Promise<bool> ConnectionLoop::AskWhetherItLives(Wire& wire, TimeNs timeout_ns) {
  auto bootstrap = wire.client.bootstrap().castAs<schema::Bootstrap>().adminRequest();
  bootstrap.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  bootstrap.getHello().setProgram("libheadrace " HEADRACE_VERSION);
  auto ping = bootstrap.send().getAdmin().pingRequest().send();
  return wire.timer.timeoutAfter(timeout_ns * kj::NANOSECONDS, kj::mv(ping))
      .then([](auto&&) { return true; }, [](kj::Exception&&) { return false; });
}

void ConnectionLoop::WatchOperations(Wire& wire, TimeNs timeout_ns) {
  wire.standstill.emplace(timeout_ns);
  wire.tasks->add(WatchOperations(wire));
}

kj::Promise<void> ConnectionLoop::WatchOperations(Wire& wire) {
  StandstillDetector& standstill = *wire.standstill;
  return wire.timer.afterDelay(standstill.interval_ns() * kj::NANOSECONDS)
      .then([this, &wire, &standstill]() -> kj::Promise<void> {
        using Step = StandstillDetector::Step;
        const Step step = standstill.Check(MonotonicNow(), listener_.OldestOpen());
        if (step == Step::kGiveUp) {
          Disconnect(StandstillOf(service_, standstill.open_ns()));
          return kj::READY_NOW;
        }
        if (step == Step::kAsk) {
          wire.tasks->add(AskWhetherItLives(wire, AnswerMargin(0)).then([&standstill](bool lives) {
            standstill.OnAnswer(lives);
          }));
        }
        return WatchOperations(wire);
      });
}

void ConnectionLoop::AwaitNotices(Wire& wire) {
  wire.tasks->add(wire.session->noticeRequest().send().then(
      [this, &wire](auto&& notice) {
        if (notice.getKind() == kNoticeEnded) {
          return Disconnect(Error(Code::kPeerLost, std::string(notice.getText().cStr())));
        }
        if (notice.getKind() == kNoticeMembersWait) listener_.OnMembersWait();
        if (notice.getKind() == kNoticePlaces) listener_.OnPlaces(notice.getText().cStr());
        AwaitNotices(wire);
      },
      [](kj::Exception&&) {}));  // a service that does not know the question, or the loss itself
}

kj::Promise<void> ConnectionLoop::ServeCalls(kj::UnixEventPort::FdObserver& observer, Wire& wire) {
  return observer.whenBecomesReadable().then([this, &observer, &wire]() -> kj::Promise<void> {
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t read = ::read(bell_.get(), &rings, sizeof rings);
    std::deque<Pending*> calls;
    bool stopping = false;
    {
      std::lock_guard lock(mutex_);
      calls.swap(inbox_);
      stopping = stopping_;
    }
    for (Pending* call : calls) wire.tasks->add(RunCall(*call, wire));
    if (stopping) return kj::READY_NOW;
    return ServeCalls(observer, wire);
  });
}

void ConnectionLoop::Lose() { Disconnect(LossOf(service_, stops_)); }

void ConnectionLoop::Disconnect(const Error& loss) {
  {
    std::lock_guard lock(mutex_);
    if (leaving_ || stopping_ || loss_) return;
    loss_ = loss;
  }
  // Where the service goes on later, it finds by this that the lease has ended.
  ::shutdown(socket_number_, SHUT_RDWR);
  listener_.OnLost(loss);
}

Error ConnectionLoop::CauseOf(const kj::Exception& exception) {
  const std::lock_guard lock(mutex_);
  return loss_ ? *loss_ : ErrorOf(exception, service_, stops_);
}

void ConnectionLoop::Run() {
  struct Quiet final : kj::TaskSet::ErrorHandler {
    // Calls turn their exceptions into a Status; only the disconnect's own promise can come here.
    void taskFailed(kj::Exception&&) override {}
  };
  kj::AsyncIoContext io = SetupLoop();
  kj::Own<kj::AsyncCapabilityStream> stream = io.lowLevelProvider->wrapUnixSocketFd(
      socket_.release(),
      kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
  capnp::TwoPartyClient client(*stream, kFdsPerMessageMax);
  Wire wire{.client = client, .timer = io.provider->getTimer(), .session = {}, .standstill = {}};
  kj::UnixEventPort::FdObserver observer(io.unixEventPort, bell_.get(),
                                         kj::UnixEventPort::FdObserver::OBSERVE_READ);
  Quiet quiet;
  kj::TaskSet tasks(quiet);  // after what its tasks use, so that it goes first
  wire.tasks = &tasks;
  tasks.add(client.onDisconnect().then([this] { Lose(); }, [this](kj::Exception&&) { Lose(); }));
  ServeCalls(observer, wire).wait(io.waitScope);
}

}  // namespace headrace::client
