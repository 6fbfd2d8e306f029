#include "service/daemon.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/board.h"
#include "service/actor/runner.h"
#include "service/actor/sleeper.h"
#include "service/control/control.h"
#include "service/control/control_inbox.h"
#include "service/dispatch/dispatch.h"
#include "service/instance.h"
#include "service/lane/lane.h"
#include "service/watch/watch.h"
#include "transport/reduce/reduce.h"
#include "transport/shm/shm_transport.h"

namespace headrace::service {
namespace {

std::uint32_t LaneThreads(const Config& config) {
  if (config.lane_threads != 0) return static_cast<std::uint32_t>(config.lane_threads);
  return std::max(1U, std::thread::hardware_concurrency());
}

ControlOptions OptionsOf(const Config& config) {
  return {.socket_path = config.socket_path,
          .socket_mode = static_cast<std::uint32_t>(config.socket_mode),
          .version = std::string(Version()),
          .config_text = PrintConfig(config),
          .reduce_target = std::string(transport::SimdTargetName()),
          .operation_timeout_ms = static_cast<std::uint32_t>(config.operation_timeout_ms),
          .drain_timeout_ns = static_cast<TimeNs>(config.drain_timeout_ms) * kMillisecond};
}

EventSink LogTo(std::shared_ptr<spdlog::logger> log) {
  return [log = std::move(log)](const Event& event) {
    if (event.code == Code::kOk) {
      log->info("{}", event.text);
    } else {
      log->warn("{}: {}", CodeName(event.code), event.text);
    }
  };
}

}  // namespace

// Members stand in build order: what a part refers to stands above it.
struct Daemon::Parts {
  Parts(const Config& config, std::shared_ptr<spdlog::logger> logger, Instance claimed,
        ipc::BoardFile board_file, std::unique_ptr<ControlInbox> inbox,
        std::vector<std::unique_ptr<Sleeper>> thread_sleepers)
      : log(std::move(logger)),
        instance(std::move(claimed)),
        board(std::move(board_file)),
        control_inbox(std::move(inbox)),
        sleepers(std::move(thread_sleepers)),
        spin_ns(static_cast<TimeNs>(config.spin_us) * kMicrosecond),
        watch(*watch_sleeper(), *control_inbox, board.layout(), LogTo(log)),
        dispatch(*data_sleeper(), *data_sleeper(), *control_inbox, watch.door(), board.layout()),
        lane_waker(*lane_sleeper()),
        shm(LaneThreads(config), lane_waker),
        lane(0, "shm0", shm, lane_waker, *lane_sleeper(), dispatch.door()) {
    dispatch.ConnectLanes({{.name = "shm0",
                            .transport = std::string(shm.capabilities().name),
                            .threads = shm.capabilities().threads,
                            .credit_bytes = config.credit_bytes,
                            .door = &lane.door()}});
  }

  // Dispatch and the lane share the data thread unless the lane has a third sleeper of its own.
  Sleeper* data_sleeper() { return sleepers[0].get(); }
  Sleeper* watch_sleeper() { return sleepers[1].get(); }
  Sleeper* lane_sleeper() { return sleepers.size() > 2 ? sleepers[2].get() : data_sleeper(); }

  std::shared_ptr<spdlog::logger> log;  // shared with main, which made it
  Instance instance;
  ipc::BoardFile board;
  std::unique_ptr<ControlInbox> control_inbox;
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  TimeNs spin_ns;
  Watch watch;
  Dispatch dispatch;
  LaneWaker lane_waker;
  transport::ShmTransport shm;
  Lane lane;
  std::unique_ptr<Control> control;
};

Result<std::unique_ptr<Daemon>> Daemon::Create(const Config& config,
                                               std::shared_ptr<spdlog::logger> log) {
  Result<Instance> instance = Instance::Claim(config.socket_path, "headraced");
  if (!instance) return instance.error();
  if (!instance->notice().empty()) log->warn("{}", instance->notice());
  Result<ipc::BoardFile> board =
      ipc::BoardFile::Create(config.board_path, static_cast<std::uint32_t>(config.board_mode));
  if (!board) return board.error();
  Result<std::unique_ptr<ControlInbox>> inbox = ControlInbox::Create();
  if (!inbox) return inbox.error();
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  for (int i = 0; i < (config.dedicated_lanes ? 3 : 2); ++i) {
    Result<std::unique_ptr<Sleeper>> sleeper = Sleeper::Create();
    if (!sleeper) return sleeper.error();
    sleepers.push_back(std::move(sleeper).value());
  }
  auto parts =
      std::make_unique<Parts>(config, log, std::move(instance).value(), std::move(board).value(),
                              std::move(inbox).value(), std::move(sleepers));
  Result<std::unique_ptr<Control>> control =
      Control::Create(OptionsOf(config), {.inbox = *parts->control_inbox,
                                          .dispatch = parts->dispatch.door(),
                                          .watch = parts->watch.door(),
                                          .board = parts->board.layout().service,
                                          .log = *log});
  if (!control) return control.error();
  parts->control = std::move(control).value();
  return std::unique_ptr<Daemon>(new Daemon(std::move(parts)));
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

int Daemon::Run() {
  const bool dedicated = parts_->lane_sleeper() != parts_->data_sleeper();
  std::vector<Actor*> data{&parts_->dispatch};
  if (!dedicated) data.push_back(&parts_->lane);
  const Runner watch_thread("hr-watch", {&parts_->watch}, *parts_->watch_sleeper(), 0);
  const Runner data_thread("hr-data", std::move(data), *parts_->data_sleeper(), parts_->spin_ns);
  std::unique_ptr<Runner> lane_thread;
  if (dedicated) {
    lane_thread = std::make_unique<Runner>("hr-lane0", std::vector<Actor*>{&parts_->lane},
                                           *parts_->lane_sleeper(), parts_->spin_ns);
  }
  return parts_->control->Run();
}

}  // namespace headrace::service
