#include "tests/unit/client/bootstrap_end.h"

#include <capnp/rpc-twoparty.h>
#include <gtest/gtest.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/schema/client.capnp.h"

namespace headrace::client {
namespace {

struct BootstrapState {
  const Manners manners;
  std::mutex mutex;
  BootstrapEnd::Seen seen;  // guarded by mutex
};

class AdminEnd final : public schema::Admin::Server {
 public:
  explicit AdminEnd(BootstrapState& state) : state_(state) {}

  kj::Promise<void> ping(PingContext) override {
    if (state_.manners.silent_pings) return kj::NEVER_DONE;
    std::lock_guard lock(state_.mutex);
    ++state_.seen.pings;
    return kj::READY_NOW;
  }

 private:
  BootstrapState& state_;
};

void FillRefusal(const Status& status, schema::Refusal::Builder refusal) {
  refusal.setCode(static_cast<std::uint8_t>(status.code()));
  refusal.setText(status.ok() ? "" : status.error().text().c_str());
}

std::uint64_t SizeOfFile(int fd) {
  struct stat state {};
  return ::fstat(fd, &state) == 0 ? static_cast<std::uint64_t>(state.st_size) : 0;
}

class SessionEnd final : public schema::Session::Server {
 public:
  explicit SessionEnd(BootstrapState& state) : state_(state) {}

  kj::Promise<void> registerSegment(RegisterSegmentContext context) override {
    return context.getParams().getMemory().getFd().then([this, context](kj::Maybe<int> fd) mutable {
      std::lock_guard lock(state_.mutex);
      KJ_IF_MAYBE (number, fd) {
        state_.seen.segment_size = SizeOfFile(*number);
      }
      FillRefusal(state_.manners.refusal, context.getResults().getRefusal());
      context.getResults().setSegment(3);
      if (state_.manners.answers_after == 0) return kj::Promise<void>(kj::READY_NOW);
      auto pair = kj::newPromiseAndFulfiller<void>();
      mapped_ = kj::mv(pair.fulfiller);
      return kj::mv(pair.promise);
    });
  }
  kj::Promise<void> notice(NoticeContext context) override {
    if (state_.manners.places.empty() || std::exchange(noticed_, true)) return kj::NEVER_DONE;
    context.getResults().setKind(3);
    context.getResults().setText(state_.manners.places);
    return kj::READY_NOW;
  }
  kj::Promise<void> registration(RegistrationContext context) override {
    ++asked_;
    context.getResults().setBytes(
        static_cast<std::uint64_t>(std::min(asked_, state_.manners.gets_on)) * 4096);
    if (asked_ == state_.manners.answers_after) mapped_->fulfill();
    return kj::READY_NOW;
  }
  kj::Promise<void> registerDeviceSegment(RegisterDeviceSegmentContext context) override {
    const auto params = context.getParams();
    {
      std::lock_guard lock(state_.mutex);
      const auto handle = params.getHandle();
      state_.seen.handle = {.kind = static_cast<DeviceHandleKind>(handle.getKind()),
                            .exporter_pid = handle.getExporterPid(),
                            .offset = handle.getOffset(),
                            .size = handle.getSize(),
                            .piece_size = handle.getPieceSize()};
      const auto copy = [](capnp::Data::Reader from, auto& to) {
        ASSERT_LE(from.size(), to.size());
        std::copy(from.begin(), from.end(), to.begin());
      };
      copy(handle.getDevice(), state_.seen.handle.device);
      copy(handle.getLegacy(), state_.seen.handle.legacy);
    }
    auto fds = kj::heapArrayBuilder<kj::Promise<kj::Maybe<int>>>(params.getPieces().size());
    for (schema::Descriptor::Client piece : params.getPieces()) fds.add(piece.getFd());
    return kj::joinPromises(fds.finish())
        .then([this, context](kj::Array<kj::Maybe<int>> numbers) mutable {
          std::lock_guard lock(state_.mutex);
          for (const kj::Maybe<int>& fd : numbers) {
            KJ_IF_MAYBE (number, fd) {
              state_.seen.piece_sizes.push_back(SizeOfFile(*number));
            }
          }
          FillRefusal(state_.manners.refusal, context.getResults().getRefusal());
          context.getResults().setSegment(4);
        });
  }
  kj::Promise<void> registerTensors(RegisterTensorsContext context) override {
    std::lock_guard lock(state_.mutex);
    state_.seen.tensors += context.getParams().getTensors().size();
    FillRefusal(state_.manners.refusal, context.getResults().getRefusal());
    context.getResults().setFirst(11);
    return kj::READY_NOW;
  }
  kj::Promise<void> setLayout(SetLayoutContext context) override {
    const auto params = context.getParams();
    std::lock_guard lock(state_.mutex);
    state_.seen.layout = std::to_string(params.getFirst()) + " " +
                         std::to_string(params.getCount()) + " " +
                         std::to_string(params.getReduction()) + " " + params.getPolicy().cStr() +
                         " " + params.getCodec().cStr();
    FillRefusal(state_.manners.refusal, context.getResults().getRefusal());
    return kj::READY_NOW;
  }
  kj::Promise<void> leave(LeaveContext) override {
    std::lock_guard lock(state_.mutex);
    state_.seen.left = true;
    return kj::READY_NOW;
  }

 private:
  BootstrapState& state_;
  bool noticed_ = false;
  int asked_ = 0;
  kj::Own<kj::PromiseFulfiller<void>> mapped_;
};

class BootstrapServer final : public schema::Bootstrap::Server {
 public:
  explicit BootstrapServer(BootstrapState& state) : state_(state) {}

  kj::Promise<void> attach(AttachContext context) override {
    if (state_.manners.silent) return kj::NEVER_DONE;
    const auto params = context.getParams();
    {
      std::lock_guard lock(state_.mutex);
      state_.seen.rank = params.getRequest().getRank();
      state_.seen.program = params.getHello().getProgram().cStr();
      state_.seen.rendezvous = params.getRequest().getRendezvous().cStr();
      state_.seen.architecture = params.getRequest().getArchitecture().cStr();
    }
    return params.getRequest().getChannel().getFd().then(
        [this, context](kj::Maybe<int> fd) mutable {
          std::lock_guard lock(state_.mutex);
          KJ_IF_MAYBE (number, fd) {
            state_.seen.channel_size = SizeOfFile(*number);
          }
          auto results = context.getResults();
          if (!state_.manners.refuse_calls)
            FillRefusal(state_.manners.refusal, results.getRefusal());
          results.setSession(kj::heap<SessionEnd>(state_));
          results.getGranted().setSessionId(42);
          results.getGranted().setTimeoutMs(state_.manners.timeout_ms);
        });
  }
  kj::Promise<void> admin(AdminContext context) override {
    context.getResults().setAdmin(kj::heap<AdminEnd>(state_));
    return kj::READY_NOW;
  }

 private:
  BootstrapState& state_;
};

}  // namespace

struct BootstrapEnd::Thread {
  Thread(const std::string& path, Manners manners)
      : state{std::move(manners), {}, {}},
        listener(ListenAt(path)),
        stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread([this] { Run(); }) {}

  ~Thread() { Stop(); }

  void Stop() {
    if (!thread.joinable()) return;
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread.join();
  }

  void Run() {
    // kj counts on SIGPIPE being ignored, which the connection under test takes back.
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    kj::AsyncIoContext io = kj::setupAsyncIo();
    auto receiver = io.lowLevelProvider->wrapListenSocketFd(
        listener.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
    capnp::TwoPartyServer server(kj::heap<BootstrapServer>(state));
    kj::UnixEventPort::FdObserver observer(io.unixEventPort, stop.get(),
                                           kj::UnixEventPort::FdObserver::OBSERVE_READ);
    server.listenCapStreamReceiver(*receiver, kDevicePiecesMax)
        .exclusiveJoin(observer.whenBecomesReadable())
        .wait(io.waitScope);
  }

  BootstrapState state;
  UniqueFd listener;
  UniqueFd stop;
  std::thread thread;
};

UniqueFd ListenAt(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

BootstrapEnd::BootstrapEnd(Manners manners) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  path_ = testing::TempDir() + "headrace-" + std::to_string(::getpid()) + "-" + test->name();
  ::unlink(path_.c_str());
  thread_ = std::make_unique<Thread>(path_, std::move(manners));
}

BootstrapEnd::~BootstrapEnd() {
  thread_.reset();
  ::unlink(path_.c_str());
}

void BootstrapEnd::Vanish() { thread_->Stop(); }

BootstrapEnd::Seen BootstrapEnd::seen() const {
  std::lock_guard lock(thread_->state.mutex);
  return thread_->state.seen;
}

}  // namespace headrace::client
