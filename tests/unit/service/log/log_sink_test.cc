// The log's way out: nobody who logs waits for whoever reads.
#include "service/log/log_sink.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

constexpr int kPipeSize = 4096;
constexpr std::size_t kBytesMax = 8192;

class LogSinkTest : public ::testing::Test {
 protected:
  LogSinkTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = ends[1];
    EXPECT_GE(::fcntl(writer_, F_SETPIPE_SZ, kPipeSize), kPipeSize);
    sink_ = std::make_shared<LogSink>(
        writer_, LogSink::Options{.bytes_max = kBytesMax, .close_ns = 10 * kMillisecond});
    log_ = std::make_unique<spdlog::logger>("test", sink_);
  }

  ~LogSinkTest() override { End(); }

  // Ends the log, and closes the pipe once its thread can no longer stand in it.
  void End() {
    log_.reset();
    sink_.reset();
    reader_ = UniqueFd();
  }

  // All lines until the line that ends with `last`.
  std::vector<std::string> ReadUntil(const std::string& last) const {
    std::vector<std::string> lines;
    std::string line;
    for (char byte = 0; ::read(reader_.get(), &byte, 1) == 1;) {
      if (byte != '\n') {
        line += byte;
        continue;
      }
      lines.push_back(line);
      if (line.ends_with(last)) break;
      line.clear();
    }
    return lines;
  }

  // The lines that were logged have 100 bytes of text.
  void LogMany(int count) {
    for (int i = 0; i < count; ++i) log_->info("{:0>100}", i);
  }

  UniqueFd reader_;
  int writer_ = -1;  // stays open, as stderr does: a thread may stand in a write to it
  std::shared_ptr<LogSink> sink_;
  std::unique_ptr<spdlog::logger> log_;
};

TEST_F(LogSinkTest, WritesLinesInOrderWithTimeAndLevel) {
  log_->info("first");
  log_->warn("second");
  const std::vector<std::string> lines = ReadUntil("second");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].ends_with(" info first")) << lines[0];
  EXPECT_THAT(lines[0], ::testing::MatchesRegex("[0-9-]+T[0-9:]+[.][0-9]+[+-][0-9][0-9]:[0-9][0-9] "
                                                "info first"))
      << "in whose time it is";
  EXPECT_EQ(sink_->dropped(), 0U);
}

TEST_F(LogSinkTest, DropsTheOldestLinesWhenNobodyReadsAndSaysHowMany) {
  ipc::BoardSlot<ipc::LogRow> row{};
  sink_->CountDropsOn(&row);
  LogMany(1000);  // returns, although the pipe holds 30 of them
  log_->info("the last");
  const std::uint64_t dropped = sink_->dropped();
  EXPECT_GT(dropped, 500U);
  EXPECT_EQ(ipc::ReadRow(row)->lines_dropped, dropped);
  EXPECT_GT(ipc::ReadRow(row)->last_drop_ns, 0);
  const std::vector<std::string> lines = ReadUntil("the last");
  std::uint64_t reported = 0;
  std::uint64_t notices = 0;
  for (const std::string& line : lines) {
    const std::size_t text = line.find(" warning ");
    if (text == std::string::npos) continue;
    ++notices;
    reported += std::stoull(line.substr(text + 9));
  }
  EXPECT_EQ(reported, dropped);
  EXPECT_EQ(lines.size() - notices + dropped, 1001U) << "every line is there, or counted";
  sink_->CountDropsOn(nullptr);
}

TEST_F(LogSinkTest, EndsInTimeWhileNobodyReads) {
  LogMany(1000);
  const TimeNs begin = MonotonicNow();
  log_.reset();
  sink_.reset();
  EXPECT_LT(MonotonicNow() - begin, 5 * kSecond);
}

TEST_F(LogSinkTest, WritesWhatWaitsBeforeItEnds) {
  for (int i = 0; i < 20; ++i) log_->info("line {}", i);
  log_.reset();
  sink_.reset();
  EXPECT_EQ(ReadUntil("line 19").size(), 20U);
}

TEST_F(LogSinkTest, CountsLinesThatCannotBeWritten) {
  reader_ = UniqueFd();  // and no SIGPIPE ends the process
  log_->info("nobody is there");
  const TimeNs deadline = MonotonicNow() + 10 * kSecond;
  while (sink_->dropped() == 0 && MonotonicNow() < deadline) std::this_thread::yield();
  EXPECT_EQ(sink_->dropped(), 1U);
}

TEST_F(LogSinkTest, WaitsForRoomOnANonBlockingDescriptor) {
  ASSERT_EQ(::fcntl(writer_, F_SETFL, O_NONBLOCK), 0);
  for (int i = 0; i < 60; ++i) log_->info("{:0>100}", i);  // more than the pipe holds
  EXPECT_EQ(ReadUntil("59").size(), 60U);
}

}  // namespace
}  // namespace headrace::service
