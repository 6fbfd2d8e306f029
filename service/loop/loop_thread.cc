#include "service/loop/loop_thread.h"

#include <kj/async-unix.h>
#include <kj/debug.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <future>
#include <utility>

#include "ipc/base/check.h"
#include "service/loop/text.h"

namespace headrace::service {
namespace {

// They are the main thread's; a closed socket is an error code.
void BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) sigaddset(&signals, signal);
  HR_CHECK(::pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

}  // namespace

Result<std::unique_ptr<LoopThread>> LoopThread::Start(std::string name, Body body) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return SystemError("eventfd", errno);
  const int stop_fd = stop.get();
  std::unique_ptr<LoopThread> made(new LoopThread(std::move(stop)));
  std::promise<Status> outcome;
  std::future<Status> started = outcome.get_future();
  made->thread_ = std::thread(
      [stop_fd, body = std::move(body), outcome = std::move(outcome), said = false]() mutable {
        const std::function<void(Status)> say = [&outcome, &said](Status status) {
          if (!std::exchange(said, true)) outcome.set_value(std::move(status));
        };
        BlockSignals();
        try {
          kj::AsyncIoContext io = kj::setupAsyncIo();
          io.waitScope.setBusyPollInterval(kEventsPerPoll);
          kj::UnixEventPort::FdObserver observer(io.unixEventPort, stop_fd,
                                                 kj::UnixEventPort::FdObserver::OBSERVE_READ);
          body(io, observer.whenBecomesReadable(), say);
        } catch (const kj::Exception& exception) {
          say(Error(Code::kInternal, CauseOf(exception)));
        }
        say(Error(Code::kInternal, "the event loop ended before it had started"));
      });
  pthread_setname_np(made->thread_.native_handle(), name.substr(0, 15).c_str());
  if (Status status = started.get(); !status) return status.error();
  return made;
}

LoopThread::~LoopThread() {
  const std::uint64_t one = 1;
  const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  HR_CHECK(written == sizeof one, written, errno);  // else the join waits for ever
  if (thread_.joinable()) thread_.join();
}

}  // namespace headrace::service
