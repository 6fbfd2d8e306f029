#include "service/log/log_sink.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <string>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

struct LogSink::Queue {
  // Requires the lock.
  void CountDrop(std::uint64_t count) {
    row.lines_dropped += count;
    row.last_drop_ns = MonotonicNow();
    unreported += count;
    if (board_row != nullptr) ipc::WriteRow(*board_row, row);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> lines;  // guarded by mutex, as is all below
  std::size_t bytes = 0;          // of these
  std::uint64_t unreported = 0;   // lines that were dropped since the log said so
  ipc::LogRow row{};
  ipc::BoardSlot<ipc::LogRow>* board_row = nullptr;
  bool closing = false;
  bool ended = false;  // the thread has written everything, and left
};

namespace {

// False when the line could not be written whole.
bool WriteLine(int fd, std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(fd, line.data(), line.size());
    if (written >= 0) {
      line.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      // Whoever shares the descriptor has made it non-blocking.
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::string DropNotice(std::uint64_t lines) {
  const std::string text = fmt::format(
      "{} lines of the log were dropped: nobody read it, or it could not be written", lines);
  spdlog::pattern_formatter formatter{std::string(kLogPattern)};
  spdlog::memory_buf_t formatted;
  formatter.format(spdlog::details::log_msg("headraced", spdlog::level::warn, text), formatted);
  return {formatted.data(), formatted.size()};
}

}  // namespace

LogSink::LogSink(int fd, const Options& options)
    : options_(options), queue_(std::make_shared<Queue>()) {
  set_pattern(std::string(kLogPattern));
  const auto write = [queue = queue_, fd] {
    std::unique_lock lock(queue->mutex);
    while (true) {
      queue->changed.wait(lock, [&queue] { return queue->closing || !queue->lines.empty(); });
      if (queue->lines.empty()) break;
      std::string text;
      if (const std::uint64_t lost = std::exchange(queue->unreported, 0); lost != 0) {
        text = DropNotice(lost);
      }
      text += queue->lines.front();
      HR_CHECK(queue->bytes >= queue->lines.front().size(), queue->bytes);
      queue->bytes -= queue->lines.front().size();
      queue->lines.pop_front();
      lock.unlock();
      const bool written = WriteLine(fd, text);
      lock.lock();
      if (!written) queue->CountDrop(1);
    }
    queue->ended = true;
    queue->changed.notify_all();
  };
  // The thread inherits the mask: it handles no signal, and a reader who is gone is an error code.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread(write);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), "hr-log");
}

LogSink::~LogSink() {
  bool ended = false;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->board_row = nullptr;
    queue_->closing = true;
    queue_->changed.notify_all();
    ended = queue_->changed.wait_for(lock, std::chrono::nanoseconds(options_.close_ns),
                                     [this] { return queue_->ended; });
  }
  // A thread that stands in write() ends with the process.
  ended ? thread_.join() : thread_.detach();
}

void LogSink::CountDropsOn(ipc::BoardSlot<ipc::LogRow>* row) {
  const std::lock_guard lock(queue_->mutex);
  queue_->board_row = row;
  if (row != nullptr) ipc::WriteRow(*row, queue_->row);
}

std::uint64_t LogSink::dropped() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->row.lines_dropped;
}

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  std::string line(formatted.data(), formatted.size());
  const std::lock_guard lock(queue_->mutex);
  std::uint64_t lost = 0;
  while (!queue_->lines.empty() && queue_->bytes + line.size() > options_.bytes_max) {
    HR_CHECK(queue_->bytes >= queue_->lines.front().size(), queue_->bytes);
    queue_->bytes -= queue_->lines.front().size();
    queue_->lines.pop_front();
    ++lost;
  }
  HR_CHECK(queue_->lines.empty() == (queue_->bytes == 0), queue_->lines.size(), queue_->bytes);
  if (lost != 0) queue_->CountDrop(lost);
  queue_->bytes += line.size();
  queue_->lines.push_back(std::move(line));
  queue_->changed.notify_one();
}

}  // namespace headrace::service
