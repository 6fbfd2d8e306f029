// headraced: reads its configuration, says all of it, and runs.
//
// Exit codes: 0 stopped as asked, 1 could not start or stopped short, 2 usage, 3 stopped because a
// GPU's context broke, to be started anew.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "service/config/gpu_environment.h"
#include "service/config/invocation.h"
#include "service/config/notify.h"
#include "service/daemon.h"
#include "service/log/log_sink.h"

namespace headrace::service {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// The kernel kills what else runs in a container together with its first process. So a `headracectl
// drain` there, which waits for the end, as in Kubernetes' preStop, is left the time to see it:
// else the hook would be reported as failed.
constexpr pid_t kFirstProcess = 1;
constexpr std::chrono::seconds kTimeToSeeTheEnd{1};

// A client that closes its socket is an error code, not the end of the service; the other two are
// read by rpc, and every thread started later inherits that they are blocked.
void BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGPIPE, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// Each session costs a socket and up to two descriptors, and the usual soft limit of 1024 is kept
// low for the sake of select(), which nothing here calls.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger> MakeLog(const Config& config, std::shared_ptr<LogSink> sink) {
  auto log = std::make_shared<spdlog::logger>("headraced", std::move(sink));
  log->set_level(LevelOf(config.log_level));
  return log;
}

// For libraries that read it by themselves. While there is one thread: setenv is safe with no more.
Status SetGpuEnvironment(const Config& config) {
  const auto variables = GpuEnvironment(config, ProcessEnvironment());
  if (!variables) return variables.error();
  for (const auto& [name, value] : *variables) ::setenv(name.c_str(), value.c_str(), 1);
  return {};
}

// systemd, where it started this process and waits for its words (Type=notify, WatchdogSec=).
Supervisor SupervisorOf(const Environment& environment, spdlog::logger& log) {
  Supervisor supervisor;
  const auto path = environment("NOTIFY_SOCKET");
  if (!path) return supervisor;
  supervisor.notify = [path = *path, &log](std::string_view state) {
    if (Status told = NotifySystemd(path, state); !told) log.warn("{}", told.error().text());
  };
  // The variable may be meant for another process that handed its environment on.
  const auto whose = environment("WATCHDOG_PID");
  if (whose && *whose != std::to_string(::getpid())) return supervisor;
  if (const auto microseconds = environment("WATCHDOG_USEC"); microseconds) {
    Result<TimeNs> patience = WatchdogPatience(*microseconds);
    if (patience) {
      supervisor.patience_ns = *patience;
    } else {
      log.warn("{}", patience.error().text());
    }
  }
  return supervisor;
}

// What SIGHUP does here: the configuration is read anew, by the same command line. The level of the
// log changes at once; what else has changed is named, since it needs a new start.
class Reloader {
 public:
  Reloader(std::span<const char* const> arguments, const Config& config, spdlog::logger& log)
      : arguments_(arguments), config_(config), log_(log) {}

  void Reload() {
    const Result<Invocation> read = ReadInvocation(arguments_, ProcessEnvironment());
    if (!read) {
      log_.error("SIGHUP: the configuration stays as it is: {}", read.error().text());
      return;
    }
    std::vector<std::string> changed = ChangedKeys(config_, read->config);
    const bool has_level = std::erase(changed, "log_level") > 0;
    // Said at the old level, when that says more than the new one.
    const std::string level = has_level
                                  ? fmt::format("log_level is now {}", Name(read->config.log_level))
                                  : std::string("log_level has not changed");
    const std::string rest =
        changed.empty() ? std::string("nothing else has changed")
                        : fmt::format("a restart is needed for {}", fmt::join(changed, ", "));
    log_.log(changed.empty() ? spdlog::level::info : spdlog::level::warn,
             "SIGHUP: certificate files are read if they have changed; {}; {}", level, rest);
    config_.log_level = read->config.log_level;
    log_.set_level(LevelOf(config_.log_level));
  }

 private:
  std::span<const char* const> arguments_;
  Config config_;  // in force
  spdlog::logger& log_;
};

int Serve(std::span<const char* const> arguments, const Config& config) {
  BlockSignals();
  RaiseDescriptorLimit();
  const auto sink = std::make_shared<LogSink>(
      STDERR_FILENO,
      LogSink::Options{.bytes_max = static_cast<std::size_t>(config.log_queue_bytes)});
  const std::shared_ptr<spdlog::logger> log = MakeLog(config, sink);
  log->info("headraced {} with this configuration:\n{}", Version(), PrintConfig(config));
  Result<std::unique_ptr<Daemon>> daemon = Daemon::Create(config, log, *sink);
  if (!daemon) {
    log->error("cannot start: {}", daemon.error().text());
    return kExitFailure;
  }
  Supervisor supervisor = SupervisorOf(ProcessEnvironment(), *log);
  // It takes connections from here on.
  if (supervisor.notify) supervisor.notify("READY=1");
  Reloader reloader(arguments, config, *log);
  supervisor.reload = [&reloader] { reloader.Reload(); };
  const int code = (*daemon)->Run(std::move(supervisor));
  daemon->reset();
  log->info("stopped");
  if (::getpid() == kFirstProcess) std::this_thread::sleep_for(kTimeToSeeTheEnd);
  return code;
}

// What reading the configuration does not find. Warnings of a start go to stderr here too.
int CheckOnly(const Config& config) {
  BlockSignals();
  RaiseDescriptorLimit();
  const std::shared_ptr<spdlog::logger> log =
      MakeLog(config, std::make_shared<LogSink>(STDERR_FILENO));
  log->set_level(std::max(log->level(), spdlog::level::warn));
  const Status status = Daemon::Check(config, log);
  if (!status) {
    fmt::print(stderr, "headraced: {}\n", status.error().text());
    return kExitUsage;
  }
  fmt::print("the configuration is fine\n");
  return 0;
}

int Main(std::span<const char* const> arguments) {
  Result<Invocation> invocation = ReadInvocation(arguments, ProcessEnvironment());
  if (!invocation) {
    fmt::print(stderr, "headraced: {}\n", invocation.error().text());
    return kExitUsage;
  }
  if (invocation->action == Invocation::Action::kPrint) {
    fmt::print("{}", invocation->text);
    return 0;
  }
  if (const Status set = SetGpuEnvironment(invocation->config); !set) {
    fmt::print(stderr, "headraced: {}\n", set.error().text());
    return kExitUsage;
  }
  if (invocation->action == Invocation::Action::kCheck) return CheckOnly(invocation->config);
  return Serve(arguments, invocation->config);
}

}  // namespace
}  // namespace headrace::service

int main(int count, char** values) {
  return headrace::service::Main({values, static_cast<std::size_t>(count)});
}
