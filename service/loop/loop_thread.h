// A kj event loop on a thread of its own. The thread that starts it learns whether its content
// could be built, and ends it by destroying this object.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::service {

// Events that run in a row before the loop looks for timers, signals and other sockets. By default
// kj looks only when there is nothing else to do, which any client can put off for ever.
inline constexpr unsigned kEventsPerPoll = 32;

class LoopThread {
 public:
  // Runs on the thread: builds what it serves, calls `started` once with the outcome, serves until
  // `stop` resolves, and destroys it. When it has called `started` with an error it returns.
  using Body = std::function<void(kj::AsyncIoContext& io, kj::Promise<void> stop,
                                  const std::function<void(Status)>& started)>;

  // Starts a thread called `name` and waits for `started`. SIGTERM, SIGINT, SIGHUP and SIGPIPE are
  // blocked on it.
  static Result<std::unique_ptr<LoopThread>> Start(std::string name, Body body);
  // Stops and joins.
  ~LoopThread();
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // For tests, which make it stand still.
  std::thread::native_handle_type native_handle() { return thread_.native_handle(); }

 private:
  explicit LoopThread(UniqueFd stop) : stop_(std::move(stop)) {}

  UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace headrace::service
