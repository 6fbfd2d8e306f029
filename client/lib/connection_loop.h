// The thread of a connection to the service: a kj event loop, the RPC connection on it, and an
// inbox of calls of other threads.
//
// A caller sleeps until its call has ended, so a call may refer to the caller's stack. A call's
// start function runs on the loop's thread, and only that thread uses kj objects.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "client/lib/control.h"
#include "client/lib/socket.h"
#include "client/lib/standstill.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::client {

// Something for the person who started this process; nothing if the text is empty.
void PrintFrom(const std::string& who, const char* text);

class ConnectionLoop {
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

  // `service`: what texts call it. `deadline_ns`: of all calls, until BoundCalls.
  ConnectionLoop(ServiceSocket socket, UniqueFd bell, std::string service, TimeNs call_timeout_ns,
                 TimeNs deadline_ns, LossListener& listener)
      : socket_(std::move(socket.fd)),
        socket_number_(socket_.get()),
        bell_(std::move(bell)),
        service_(std::move(service)),
        call_timeout_ns_(call_timeout_ns),
        deadline_ns_(deadline_ns),
        listener_(listener),
        thread_(StartThread()) {}

  ~ConnectionLoop() {
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

  // Likewise: what the service says of the session unasked, as that it has ended it.
  void AwaitNotices(Wire& wire);

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
    Ender(ConnectionLoop& loop, Pending& pending) : loop_(loop), pending_(pending) {}
    KJ_DISALLOW_COPY(Ender);
    ~Ender() { loop_.Finish(pending_, std::move(status)); }

    Status status = Error(Code::kUnavailable, "the session is being closed");

   private:
    ConnectionLoop& loop_;
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

}  // namespace headrace::client
