#include "tests/unit/service/control/stand.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <filesystem>

#include "ipc/board.h"
#include "ipc/sealed_memory.h"

namespace headrace::support {
namespace {

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
      inbox_(service::ControlInbox::Create().value()),
      dispatch_([this](service::DispatchMessage& message) { Answer(message); }),
      watch_([this](service::WatchMessage& message) { Answer(message); }),
      thread_([this] { Serve(); }) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return serving_; });
}

ControlStand::~ControlStand() {
  // The second signal does not wait for a dispatch that never drains.
  if (WaitForExit(0) == -1) Signal(SIGTERM);
  if (WaitForExit(kSecond) == -1) Signal(SIGTERM);
  thread_.join();
  std::filesystem::remove_all(directory_);
}

void ControlStand::Answer(service::DispatchMessage& message) {
  bool sent = true;
  if (const auto* removal = std::get_if<service::RemoveSegment>(&message)) {
    sent = inbox_->Send(
        service::SegmentRemoved{.token = removal->token, .status = options_.remove_answer});
  } else if (const auto* ping = std::get_if<service::Ping>(&message); ping && options_.pong) {
    sent = inbox_->Send(service::Pong{ping->token});
  } else if (std::holds_alternative<service::Drain>(message) && options_.drains) {
    sent = inbox_->Send(service::Drained{});
  }
  HR_CHECK(sent);
}

void ControlStand::Answer(service::WatchMessage& message) {
  auto* map = std::get_if<service::MapSegment>(&message);
  if (map == nullptr || !options_.map_segments) return;
  Result<Mapping> mapping = ipc::MapSealedMemory(map->memory.get(), map->size);
  map->memory.reset();
  const bool sent =
      inbox_->Send(service::SegmentMapped{.token = map->token, .mapping = std::move(mapping)});
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
  auto control = service::Control::Create(
      options,
      {.inbox = *inbox_, .dispatch = dispatch_, .watch = watch_, .board = board_, .log = log});
  HR_CHECK(control.ok(), control.ok() ? "" : control.error().text());
  {
    const std::lock_guard lock(mutex_);
    serving_ = true;
  }
  changed_.notify_all();
  const int code = (*control)->Run();
  const std::lock_guard lock(mutex_);
  exit_code_ = code;
  changed_.notify_all();
}

ipc::ServiceRow ControlStand::BoardRow() const { return ipc::ReadRow(board_).value(); }

void ControlStand::Signal(int number) { ::pthread_kill(thread_.native_handle(), number); }

int ControlStand::WaitForExit(TimeNs patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(patience), [this] { return exit_code_ != -1; });
  return exit_code_;
}

}  // namespace headrace::support
