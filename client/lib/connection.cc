#include "client/lib/connection.h"

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "client/lib/loss.h"
#include "client/lib/socket.h"
#include "client/lib/standstill.h"
#include "ipc/base/foreign_text.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::client {
namespace {

// The service hands no descriptors to clients.
constexpr unsigned kFdsPerMessageMax = 2;
// Carries a descriptor beside a message; closes its copy when the service lets go of it.
class DescriptorServer final : public schema::Descriptor::Server {
 public:
  explicit DescriptorServer(UniqueFd fd) : fd_(std::move(fd)) {}
  kj::Maybe<int> getFd() override { return fd_.get(); }

 private:
  UniqueFd fd_;
};

Result<schema::Descriptor::Client> Describe(int fd) {
  Result<UniqueFd> copy = Duplicate(fd);
  if (!copy) return copy.error();
  return schema::Descriptor::Client(kj::heap<DescriptorServer>(std::move(copy).value()));
}

Status StatusOf(schema::Refusal::Reader refusal) {
  if (refusal.getCode() == 0) return {};
  const bool known = refusal.getCode() < kCodesCount;
  return Error(known ? static_cast<Code>(refusal.getCode()) : Code::kInternal,
               std::string(refusal.getText().cStr()));
}

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

void Fill(const DeviceHandle& handle, schema::DeviceHandle::Builder fields) {
  fields.setKind(static_cast<std::uint32_t>(handle.kind));
  fields.setExporterPid(handle.exporter_pid);
  fields.setDevice({handle.device.data(), handle.device.size()});
  fields.setOffset(handle.offset);
  fields.setSize(handle.size);
  fields.setPieceSize(handle.piece_size);
  if (handle.kind != DeviceHandleKind::kLegacyIpc) return;
  fields.setLegacy({handle.legacy.data(), handle.legacy.size()});
}

// Ends a call before anything is sent.
kj::Promise<void> Refuse(Status& status, const Error& error) {
  status = error;
  return kj::READY_NOW;
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

// Something for the person who started this process.
void PrintFrom(const std::string& who, const char* text) {
  if (*text != '\0') fmt::print(stderr, "headrace: {}: {}\n", who, text);
}

}  // namespace

class Connection::Loop {
 public:
  // What the loop's thread works with; lives on its stack.
  struct Wire {
    capnp::TwoPartyClient& client;
    kj::Timer& timer;
    std::optional<schema::Session::Client> session;
    std::optional<StandstillDetector> standstill;
    kj::TaskSet* tasks = nullptr;  // goes before the rest
  };
  // Runs on the loop's thread and resolves when the answer has been read into `status`.
  using Start = std::function<kj::Promise<void>(Wire&, Status& status)>;

  Loop(ServiceSocket socket, UniqueFd bell, const AttachRequest& request, LossListener& listener)
      : socket_(std::move(socket.fd)),
        socket_number_(socket_.get()),
        bell_(std::move(bell)),
        service_(fmt::format("the service at {} (pid {})", request.socket_path, socket.pid)),
        call_timeout_ns_(request.call_timeout_ns),
        deadline_ns_(request.deadline_ns),
        listener_(listener),
        thread_(StartThread()) {}

  ~Loop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    // What a forked child has inherited keeps the socket open, and with it the lease, unless it is
    // shut down for all.
    ::shutdown(socket_number_, SHUT_RDWR);
    Ring();
    thread_.join();
  }

  // How long a call may go without its answer.
  enum class Patience : std::uint8_t {
    kCallTimeout,
    kWhileMapping,  // further, as long as the service says that it gets on with the registration
  };
  // From any thread: hands the call over and sleeps until it has ended.
  Status Call(std::string_view doing, Start start, Patience patience = Patience::kCallTimeout);

  // On the loop's thread, once the session is attached: sees to it that the service is given up
  // when an operation is open for longer than `timeout_ns` and the service does not answer.
  void WatchOperations(Wire& wire, TimeNs timeout_ns);

  // On the loop's thread, once the session is attached: receives a stop before the socket closes.
  void AwaitStop(Wire& wire, std::string who) {
    wire.tasks->add(wire.session->stoppingRequest().send().then(
        [this, who = std::move(who)](auto&& answer) {
          stops_ = true;
          PrintFrom(who, answer.getText().cStr());
        },
        [](kj::Exception&&) {}));  // a service that does not know the question, or the loss itself
  }

  bool IsThere() const {
    pollfd socket{.fd = socket_number_, .events = POLLRDHUP, .revents = 0};
    return ::poll(&socket, 1, 0) == 0;
  }

  void BoundCalls(TimeNs timeout_ns) {
    call_timeout_ns_.store(timeout_ns, std::memory_order_relaxed);
    deadline_ns_.store(kNever, std::memory_order_relaxed);
  }

  // From here on a disconnect is what was asked for, not a loss.
  void ExpectEnd() {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }

  void CloseInChild() {
    ::close(socket_number_);
    ::close(bell_.get());
  }

 private:
  // One call in the inbox or on its way. The caller owns it and sleeps in Wait.
  struct Pending {
    Start start;
    Patience patience = Patience::kCallTimeout;
    std::optional<Status> status{};
  };
  // Ends a call however its promise goes away, so that no caller sleeps for ever.
  class Ender {
   public:
    Ender(Loop& loop, Pending& pending) : loop_(loop), pending_(pending) {}
    KJ_DISALLOW_COPY(Ender);
    ~Ender() { loop_.Finish(pending_, std::move(status)); }

    Status status = Error(Code::kUnavailable, "the session is being closed");

   private:
    Loop& loop_;
    Pending& pending_;
  };

  std::thread StartThread();
  void Ring() const {
    const std::uint64_t one = 1;
    // Cannot fail: an eventfd holds 2^64 - 2 rings, and the loop takes them all at once.
    [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof one);
  }
  void Run();
  kj::Promise<void> ServeCalls(kj::UnixEventPort::FdObserver& observer, Wire& wire);
  kj::Promise<void> RunCall(Pending& pending, Wire& wire);
  // Ends when the call has taken too long, with its error in `status`. `mapped_bytes` is what the
  // service has said so far.
  kj::Promise<void> AwaitLate(Wire& wire, Status& status, Patience patience, TimeNs waited_ns,
                              std::uint64_t mapped_bytes);
  // How much of the segment under registration is mapped; 0 without an answer in time.
  kj::Promise<std::uint64_t> AskForProgress(Wire& wire, TimeNs timeout_ns);
  // Whether the service answers within `timeout_ns`: control and dispatch, as doctor asks them.
  kj::Promise<bool> AskWhetherItLives(Wire& wire, TimeNs timeout_ns);
  kj::Promise<void> WatchOperations(Wire& wire);
  void Finish(Pending& pending, Status status);
  void Lose();
  // Likewise, for what the socket does not tell; every call then ends with this.
  void Disconnect(const Error& loss);
  Error CauseOf(const kj::Exception& exception);

  UniqueFd socket_;            // until the loop's thread takes it over
  const int socket_number_;    // to close the copy of a forked child
  const UniqueFd bell_;        // eventfd that wakes the loop for its inbox
  const std::string service_;  // for messages
  std::atomic<TimeNs> call_timeout_ns_;
  std::atomic<TimeNs> deadline_ns_;
  LossListener& listener_;
  bool stops_ = false;  // the service has said so; the loop's thread only

  std::mutex mutex_;
  std::condition_variable ended_;  // some call has its status
  std::deque<Pending*> inbox_;     // guarded by mutex_, as is all below
  std::optional<Error> loss_;
  bool stopping_ = false;
  bool leaving_ = false;

  std::thread thread_;  // last: starts when the rest is there
};

std::thread Connection::Loop::StartThread() {
  // The thread inherits the mask: the program's handlers run on its own threads only.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([this] { Run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

Status Connection::Loop::Call(std::string_view doing, Start start, Patience patience) {
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

void Connection::Loop::Finish(Pending& pending, Status status) {
  std::lock_guard lock(mutex_);
  pending.status = std::move(status);
  ended_.notify_all();  // under the lock: `pending` is gone as soon as its owner sees the status
}

kj::Promise<void> Connection::Loop::RunCall(Pending& pending, Wire& wire) {
  auto ender = kj::heap<Ender>(*this, pending);
  Ender& end = *ender;
  return kj::evalNow([&pending, &wire, &end] { return pending.start(wire, end.status); })
      .exclusiveJoin(AwaitLate(wire, end.status, pending.patience, 0, 0))
      .catch_([this, &end](kj::Exception&& exception) { end.status = CauseOf(exception); })
      .attach(kj::mv(ender));
}

kj::Promise<void> Connection::Loop::AwaitLate(Wire& wire, Status& status, Patience patience,
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

kj::Promise<std::uint64_t> Connection::Loop::AskForProgress(Wire& wire, TimeNs timeout_ns) {
  // A service that does not know the question, or does not answer it, has got on with nothing.
  return wire.timer
      .timeoutAfter(timeout_ns * kj::NANOSECONDS, wire.session->registrationRequest().send())
      .then([](auto&& answer) { return answer.getBytes(); },
            [](kj::Exception&&) { return std::uint64_t{0}; });
}

kj::Promise<bool> Connection::Loop::AskWhetherItLives(Wire& wire, TimeNs timeout_ns) {
  auto bootstrap = wire.client.bootstrap().castAs<schema::Bootstrap>().adminRequest();
  bootstrap.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  bootstrap.getHello().setProgram("libheadrace " HEADRACE_VERSION);
  auto ping = bootstrap.send().getAdmin().pingRequest().send();
  return wire.timer.timeoutAfter(timeout_ns * kj::NANOSECONDS, kj::mv(ping))
      .then([](auto&&) { return true; }, [](kj::Exception&&) { return false; });
}

void Connection::Loop::WatchOperations(Wire& wire, TimeNs timeout_ns) {
  wire.standstill.emplace(timeout_ns);
  wire.tasks->add(WatchOperations(wire));
}

kj::Promise<void> Connection::Loop::WatchOperations(Wire& wire) {
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

kj::Promise<void> Connection::Loop::ServeCalls(kj::UnixEventPort::FdObserver& observer,
                                               Wire& wire) {
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

void Connection::Loop::Lose() { Disconnect(LossOf(service_, stops_)); }

void Connection::Loop::Disconnect(const Error& loss) {
  {
    std::lock_guard lock(mutex_);
    if (leaving_ || stopping_ || loss_) return;
    loss_ = loss;
  }
  // Where the service goes on later, it finds by this that the lease has ended.
  ::shutdown(socket_number_, SHUT_RDWR);
  listener_.OnLost(loss);
}

Error Connection::Loop::CauseOf(const kj::Exception& exception) {
  const std::lock_guard lock(mutex_);
  return loss_ ? *loss_ : ErrorOf(exception, service_, stops_);
}

void Connection::Loop::Run() {
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

Connection::Connection(std::unique_ptr<Loop> loop, std::int32_t service_pid)
    : loop_(std::move(loop)), service_pid_(service_pid) {}

Connection::~Connection() = default;

Result<std::unique_ptr<Connection>> Connection::Attach(const AttachRequest& request, int channel_fd,
                                                       int doorbell_fd, LossListener& listener) {
  Result<ServiceSocket> socket = ConnectToService(request.socket_path, request.call_timeout_ns);
  if (!socket) return socket.error();
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return SystemError("create an eventfd", errno);
  const std::int32_t pid = socket->pid;
  auto loop = std::make_unique<Loop>(std::move(socket).value(), std::move(bell), request, listener);
  std::unique_ptr<Connection> connection(new Connection(std::move(loop), pid));
  if (Status status = connection->SendHello(request, channel_fd, doorbell_fd); !status) {
    connection->loop_->ExpectEnd();
    return status.error();
  }
  return connection;
}

Status Connection::SendHello(const AttachRequest& request, int channel_fd, int doorbell_fd) {
  const std::string doing =
      fmt::format("attach rank {} of job {} at {}", request.rank, request.job, request.socket_path);
  return loop_->Call(doing, [&](Loop::Wire& wire, Status& status) -> kj::Promise<void> {
    Result<schema::Descriptor::Client> channel = Describe(channel_fd);
    Result<schema::Descriptor::Client> doorbell = Describe(doorbell_fd);
    if (!channel) return Refuse(status, channel.error());
    if (!doorbell) return Refuse(status, doorbell.error());
    auto call = wire.client.bootstrap().castAs<schema::Bootstrap>().attachRequest();
    call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
    call.getHello().setProgram(request.program.c_str());
    auto fields = call.getRequest();
    fields.setJob(request.job.c_str());
    fields.setRank(request.rank);
    fields.setWorldSize(request.world_size);
    fields.setChannel(std::move(channel).value());
    fields.setDoorbell(std::move(doorbell).value());
    fields.setPid(::getpid());
    fields.setTimeoutMs(request.timeout_ms);
    fields.setRendezvous(request.rendezvous.c_str());
    fields.setArchitecture(request.architecture.c_str());
    fields.setAfterEpoch(request.after_epoch);
    fields.setRendezvousFrom(request.rendezvous_from.c_str());
    fields.setCanReconnect(request.can_reconnect);
    std::string who = fmt::format("rank {}", request.rank);
    return call.send().then([this, &wire, &status, who = std::move(who)](auto&& answer) {
      status = StatusOf(answer.getRefusal());
      if (!status) return;
      const auto granted = answer.getGranted();
      grant_ = {granted.getSessionId(), granted.getJobId(), granted.getEpoch(),
                granted.getTimeoutMs()};
      wire.session = answer.getSession();
      if (grant_.timeout_ms != 0) {
        loop_->WatchOperations(wire, grant_.timeout_ms * kMillisecond);
      }
      loop_->AwaitStop(wire, who);
      // A service that does not know the question says nothing.
      wire.tasks->add(wire.session->latenessRequest().send().then(
          [who](auto&& late) { PrintFrom(who, late.getText().cStr()); }, [](kj::Exception&&) {}));
    });
  });
}

Result<std::uint32_t> Connection::RegisterSegment(int fd, std::size_t size) {
  std::lock_guard lock(registering_);
  std::uint32_t segment = 0;
  const Status called = loop_->Call(
      "register a segment",
      [&](Loop::Wire& wire, Status& status) -> kj::Promise<void> {
        Result<schema::Descriptor::Client> memory = Describe(fd);
        if (!memory) return Refuse(status, memory.error());
        auto call = wire.session->registerSegmentRequest();
        call.setMemory(std::move(memory).value());
        call.setSize(size);
        return call.send().then([&segment, &status](auto&& answer) {
          segment = answer.getSegment();
          status = StatusOf(answer.getRefusal());
        });
      },
      Loop::Patience::kWhileMapping);
  if (!called) return called.error();
  return segment;
}

Result<std::uint32_t> Connection::RegisterDeviceSegment(const DeviceHandle& handle,
                                                        std::span<const UniqueFd> pieces) {
  std::lock_guard lock(registering_);
  std::uint32_t segment = 0;
  const Status called = loop_->Call(
      "register GPU memory",
      [&](Loop::Wire& wire, Status& status) -> kj::Promise<void> {
        auto call = wire.session->registerDeviceSegmentRequest();
        Fill(handle, call.initHandle());
        auto list = call.initPieces(static_cast<unsigned>(pieces.size()));
        for (unsigned i = 0; i < list.size(); ++i) {
          Result<schema::Descriptor::Client> piece = Describe(pieces[i].get());
          if (!piece) return Refuse(status, piece.error());
          list.set(i, std::move(piece).value());
        }
        return call.send().then([&segment, &status](auto&& answer) {
          segment = answer.getSegment();
          status = StatusOf(answer.getRefusal());
        });
      },
      Loop::Patience::kWhileMapping);
  if (!called) return called.error();
  return segment;
}

Status Connection::ReleaseSegment(std::uint32_t segment) {
  std::lock_guard lock(registering_);
  return loop_->Call("release a segment", [segment](Loop::Wire& wire, Status& status) {
    auto call = wire.session->releaseSegmentRequest();
    call.setSegment(segment);
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

Result<std::uint32_t> Connection::RegisterTensors(std::span<const TensorSpec> tensors) {
  std::lock_guard lock(registering_);
  std::uint32_t first = 0;
  const Status called = loop_->Call("register tensors", [&](Loop::Wire& wire, Status& status) {
    auto call = wire.session->registerTensorsRequest();
    auto list = call.initTensors(static_cast<unsigned>(tensors.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      const TensorSpec& tensor = tensors[i];
      list[i].setName(tensor.name.c_str());
      list[i].setSegment(tensor.segment);
      list[i].setOffset(tensor.offset);
      list[i].setCount(tensor.count);
      list[i].setDtype(static_cast<std::uint8_t>(tensor.dtype));
      list[i].setOrder(tensor.order);
    }
    return call.send().then([&first, &status](auto&& answer) {
      first = answer.getFirst();
      status = StatusOf(answer.getRefusal());
    });
  });
  if (!called) return called.error();
  return first;
}

Status Connection::ReleaseTensors(std::uint32_t first, std::uint32_t count) {
  std::lock_guard lock(registering_);
  return loop_->Call("release tensors", [first, count](Loop::Wire& wire, Status& status) {
    auto call = wire.session->releaseTensorsRequest();
    call.setFirst(first);
    call.setCount(count);
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

Status Connection::SetLayout(const LayoutNotice& layout) {
  std::lock_guard lock(registering_);
  return loop_->Call("hand in the layout", [&layout](Loop::Wire& wire, Status& status) {
    auto call = wire.session->setLayoutRequest();
    call.setFirst(layout.first);
    call.setCount(layout.count);
    call.setReduction(static_cast<std::uint8_t>(layout.reduction));
    call.setPolicy(layout.policy.c_str());
    call.setCodec(layout.codec.c_str());
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

Status Connection::Leave() {
  loop_->ExpectEnd();
  return loop_->Call("leave the job", [](Loop::Wire& wire, Status& status) {
    auto call = wire.session->leaveRequest();
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

bool Connection::IsThere() const { return loop_->IsThere(); }

void Connection::BoundCalls(TimeNs timeout_ns) { loop_->BoundCalls(timeout_ns); }

void Connection::CloseInChild() { loop_->CloseInChild(); }

}  // namespace headrace::client
