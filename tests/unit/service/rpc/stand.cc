#include "tests/unit/service/rpc/stand.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>

#include "ipc/board.h"
#include "ipc/sealed_memory.h"
#include "service/loop/loop_thread.h"
#include "service/peers/peers_thread.h"
#include "service/rpc/control.h"

namespace headrace::support {
namespace {

// Looked at by a signal handler on the thread that stands still; one at a time.
std::atomic<bool> hold = false;

std::string MakeDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "headrace-control-XXXXXX";
  HR_CHECK(::mkdtemp(path.data()) != nullptr, path);
  return path;
}

}  // namespace

ControlStand::ControlStand(StandOptions options)
    : options_(std::move(options)),
      directory_(MakeDirectory()),
      socket_path_(directory_ + "/socket"),
      rpc_inbox_(service::LoopInbox<service::RpcMessage>::Create().value()),
      peers_inbox_(service::LoopInbox<service::PeersMessage>::Create().value()),
      dispatch_([this](service::DispatchMessage& message) { Answer(message); }),
      watch_([this](service::WatchMessage& message) { Answer(message); }),
      mapping_([this](service::MappingMessage& message) { Answer(message); }),
      lanes_(MakeLanes()),
      thread_([this] { Serve(); }) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return serving_; });
}

ControlStand::~ControlStand() {
  if (frozen_) Thaw();
  // The second signal does not wait for a dispatch that never drains.
  if (WaitForExit(0) == -1) Signal(SIGTERM);
  if (WaitForExit(kSecond) == -1) Signal(SIGTERM);
  thread_.join();
  std::filesystem::remove_all(directory_);
}

void ControlStand::Answer(service::DispatchMessage& message) {
  bool sent = true;
  if (const auto* removal = std::get_if<service::RemoveSegment>(&message)) {
    sent = rpc_inbox_->Send(
        service::SegmentRemoved{.token = removal->token, .status = options_.remove_answer});
  } else if (const auto* close = std::get_if<service::CloseSession>(&message);
             close && options_.discards) {
    sent = rpc_inbox_->Send(service::SessionDiscarded{close->session});
  } else if (const auto* ping = std::get_if<service::Ping>(&message); ping && options_.pong) {
    const auto lanes = static_cast<std::uint32_t>(options_.lanes_count + 1);
    sent = rpc_inbox_->Send(service::Pong{.token = ping->token, .lanes_count = lanes});
    for (std::uint32_t lane = 0; options_.lanes_answer && lane < lanes; ++lane) {
      sent = rpc_inbox_->Send(service::LaneAnswered{.lane = static_cast<std::uint8_t>(lane),
                                                    .token = ping->token,
                                                    .status = options_.lane_status}) &&
             sent;
    }
  } else if (std::holds_alternative<service::Drain>(message) && options_.drains) {
    sent = rpc_inbox_->Send(service::Drained{});
  } else if (const auto* offer = std::get_if<service::PlanOffer>(&message);
             offer && options_.takes_plans) {
    sent = peers_inbox_->Send(
        service::PlanAck{.job = offer->job, .version = offer->plan->version, .iteration = 0});
  }
  HR_CHECK(sent);
}

void ControlStand::Answer(service::WatchMessage& message) {
  if (const auto* request = std::get_if<service::MakePlan>(&message);
      request && options_.makes_plans) {
    const Result<plan::Plan> made =
        plan::MakePlan(request->policy, request->profile, request->route, request->version);
    const bool answered = peers_inbox_->Send(service::PlanMade{
        .token = request->token, .plan = std::make_shared<const plan::Plan>(made.value())});
    HR_CHECK(answered);
  }
  if (const auto* ping = std::get_if<service::Ping>(&message); ping && options_.watch_answers) {
    const bool answered = rpc_inbox_->Send(
        service::PartAnswered{.token = ping->token, .part = service::ProbedPart::kWatch});
    HR_CHECK(answered);
  }
}

void ControlStand::Answer(service::MappingMessage& message) {
  if (const auto* device = std::get_if<service::MapDeviceSegment>(&message); device != nullptr) {
    // There is no GPU's memory here; who asks does not see the difference.
    Result<service::SegmentMemory> memory =
        ToSegmentMemory(Mapping::Anonymous(device->handle.size));
    if (options_.device_refusal) memory = *options_.device_refusal;
    const bool answered = rpc_inbox_->Send(
        service::SegmentMapped{.token = device->token, .memory = std::move(memory)});
    HR_CHECK(answered);
  }
  if (const auto* ping = std::get_if<service::Ping>(&message); ping) {
    const bool answered = rpc_inbox_->Send(
        service::PartAnswered{.token = ping->token, .part = service::ProbedPart::kMapping});
    HR_CHECK(answered);
  }
  auto* map = std::get_if<service::MapSegment>(&message);
  if (map == nullptr || !options_.map_segments) return;
  Result<Mapping> mapping = ipc::MapSealedMemory(map->memory.get(), map->size);
  map->memory.reset();
  const bool sent = rpc_inbox_->Send(
      service::SegmentMapped{.token = map->token, .memory = ToSegmentMemory(std::move(mapping))});
  HR_CHECK(sent);
}

std::vector<std::unique_ptr<WatchedInbox<service::LaneMessage>>> ControlStand::MakeLanes() {
  std::vector<std::unique_ptr<WatchedInbox<service::LaneMessage>>> lanes;
  for (std::size_t place = 0; place < options_.lanes_count; ++place) {
    lanes.push_back(std::make_unique<WatchedInbox<service::LaneMessage>>(
        [this, lane = static_cast<std::uint8_t>(place + 1)](service::LaneMessage& message) {
          Answer(lane, message);
        }));
  }
  return lanes;
}

void ControlStand::Answer(std::uint8_t lane, service::LaneMessage& message) {
  bool sent = true;
  if (const auto* open = std::get_if<service::OpenGroup>(&message)) {
    sent = peers_inbox_->Send(service::GroupOpened{
        .lane = lane, .group = open->options.group, .status = options_.open_answer});
  } else if (const auto* measure = std::get_if<service::MeasureGroup>(&message)) {
    sent = peers_inbox_->Send(
        service::GroupMeasured{.lane = lane, .group = measure->group, .cost = options_.cost});
  }
  HR_CHECK(sent);
}

void ControlStand::Serve() {
  spdlog::logger log("control", std::make_shared<spdlog::sinks::null_sink_mt>());
  service::ControlOptions options;
  options.socket_path = socket_path_;
  options.version = "0.1.0";
  options.config_text = "spin_us = 0\n";
  options.reduce_target = "AVX2";
  options.operation_timeout_ms = 1234;
  options.drain_timeout_ns = options_.drain_timeout_ns;
  options.connections_max = options_.connections_max;
  options.quotas = options_.quotas;
  options.gpus_missing = options_.gpus_missing;
  service::PeerOptions peer_options = options_.peers;
  peer_options.version = options.version;
  peer_options.forming_ns = options_.forming_ns;
  std::vector<service::NetworkLane> lanes;
  std::vector<std::string> names{"shm0"};
  for (std::size_t place = 0; place < lanes_.size(); ++place) {
    lanes.push_back({.number = static_cast<std::uint8_t>(place + 1),
                     .address = options_.peers.node_name + " lane " + std::to_string(place),
                     .inbox = lanes_[place].get()});
    names.push_back("ucx" + std::to_string(place));
  }
  auto peers = service::PeersThread::Start(peer_options, {.inbox = *peers_inbox_,
                                                          .rpc = *rpc_inbox_,
                                                          .dispatch = dispatch_,
                                                          .watch = watch_,
                                                          .log = log,
                                                          .network_lanes = std::move(lanes),
                                                          .hash_salt = options_.hash_salt});
  HR_CHECK(peers.ok(), peers.ok() ? "" : peers.error().text());
  options.rendezvous = {.names = {.node_name = options_.peers.node_name,
                                  .address = options_.peers.address,
                                  .port = (*peers)->port(),
                                  .peers = options_.peers.peers},
                        .server = options_.peers.server,
                        .rendezvous = options_.peers.rendezvous,
                        .has_lanes = !lanes_.empty()};
  auto control = service::Control::Create(options, {.inbox = *rpc_inbox_,
                                                    .dispatch = dispatch_,
                                                    .peers = *peers_inbox_,
                                                    .watch = watch_,
                                                    .mapping = mapping_,
                                                    .board = board_,
                                                    .log = log,
                                                    .lane_names = std::move(names),
                                                    .users = users_});
  HR_CHECK(control.ok(), control.ok() ? "" : control.error().text());
  {
    const std::lock_guard lock(mutex_);
    serving_ = true;
    peers_ = std::move(peers).value();
    peer_port_ = peers_->port();
  }
  changed_.notify_all();
  const int code = (*control)->Run();
  control->reset();
  peers_.reset();  // before the log goes
  const std::lock_guard lock(mutex_);
  exit_code_ = code;
  changed_.notify_all();
}

ipc::ServiceRow ControlStand::BoardRow() const { return ipc::ReadRow(board_).value(); }

ipc::UserRow ControlStand::UserRow(std::uint32_t uid) const {
  for (const auto& slot : users_) {
    const ipc::UserRow row = ipc::ReadRow(slot).value();
    if (row.in_use != 0 && row.uid == uid) return row;
  }
  return {};
}

void ControlStand::Freeze() {
  FreezePeers();
  FreezeRpc();
}

void ControlStand::FreezePeers() { StandStill(peers_->thread().native_handle()); }
void ControlStand::FreezeRpc() { StandStill(thread_.native_handle()); }

void ControlStand::StandStill(std::thread::native_handle_type thread) {
  frozen_ = true;
  hold = true;
  std::signal(SIGUSR1, [](int) {
    while (hold) ::usleep(1000);
  });
  ::pthread_kill(thread, SIGUSR1);
}

void ControlStand::Thaw() {
  hold = false;
  frozen_ = false;
}

void ControlStand::Signal(int number) { ::pthread_kill(thread_.native_handle(), number); }

int ControlStand::WaitForExit(TimeNs patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(patience), [this] { return exit_code_ != -1; });
  return exit_code_;
}

}  // namespace headrace::support
