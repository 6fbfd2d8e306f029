// A board with something on it, written as the service writes it, read as headracectl reads it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "client/cli/ctl/snapshot.h"
#include "ipc/board.h"

namespace headrace::ctl {

// The moment of every snapshot: two hours and some after the service's start.
inline constexpr TimeNs kStarted = 1000 * kSecond;
inline constexpr TimeNs kNow = kStarted + 7384 * kSecond + 250 * kMillisecond;

class BoardTest : public testing::Test {
 protected:
  BoardTest();
  ~BoardTest() override;

  ipc::BoardLayout& layout() { return file_->layout(); }
  const std::string& path() const { return path_; }
  const std::string& folder() const { return folder_; }

  // Fills every table: a job that runs, one that gathers, one that failed; stages in each state.
  void FillAll();
  void FillService(std::int32_t pid, TimeNs started_ns);
  // What a reader in another process would see.
  Snapshot Read(TimeNs now_ns = kNow);

 private:
  void FillJobs();
  void FillRanks();
  void FillQueue();
  void FillHeldBack();
  void FillLanes();
  void FillGpus();
  void FillShares();
  void FillEvents();
  void FillPlans();
  void FillUsers();
  void FillServed();

  std::string folder_;
  std::string path_;
  Result<ipc::BoardFile> file_;
};

// Compares `text` with the golden file `name`; every difference is a failure that shows both.
void ExpectGolden(const std::string& name, const std::string& text);

}  // namespace headrace::ctl
