// The output of the log: a bounded queue that any thread fills without waiting, and a thread that
// writes it. A reader that stops reading, or a disk that hangs, blocks that thread and no other.
//
// When the queue is full the oldest lines are dropped, so that the newest are there when reading
// resumes; a line in their place says how many were lost.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "ipc/base/clock.h"
#include "ipc/board.h"

namespace headrace::service {

// How a line of the log begins: its time and its level.
inline constexpr std::string_view kLogPattern = "%Y-%m-%dT%H:%M:%S.%e%z %l %v";

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  struct Options {
    std::size_t bytes_max = std::size_t{1} << 20;  // of lines that wait to be written
    TimeNs close_ns = kSecond;                     // how long the end waits for them
  };

  // Writes to `fd`, which stays the caller's and must stay open until the process ends: a write
  // that nobody reads cannot be called back.
  explicit LogSink(int fd) : LogSink(fd, Options{}) {}
  LogSink(int fd, const Options& options);
  // Waits until everything is written, or for `close_ns`; what is left then is lost.
  ~LogSink() override;

  // Lost lines are counted in this row from now on; null: no longer.
  void CountDropsOn(ipc::BoardSlot<ipc::LogRow>* row);
  std::uint64_t dropped() const;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  struct Queue;

  const Options options_;
  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive the sink
  std::thread thread_;
};

// While it lives the board counts what the log drops.
class DropCount {
 public:
  DropCount(LogSink& sink, ipc::BoardSlot<ipc::LogRow>& row) : sink_(sink) {
    sink_.CountDropsOn(&row);
  }
  ~DropCount() { sink_.CountDropsOn(nullptr); }
  DropCount(const DropCount&) = delete;
  DropCount& operator=(const DropCount&) = delete;

 private:
  LogSink& sink_;
};

}  // namespace headrace::service
