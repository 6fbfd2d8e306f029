// The board: whole rows or none, files that are no board, modes, and a writer stopped in a row.
#include "ipc/board.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace headrace::ipc {
namespace {

class Board : public testing::Test {
 protected:
  ~Board() override { std::filesystem::remove_all(folder_); }

  static std::string MakeFolder() {
    std::string pattern = testing::TempDir() + "board_test.XXXXXX";
    return ::mkdtemp(pattern.data());
  }

  std::string folder_ = MakeFolder();
  std::string path_ = folder_ + "/board";
};

// A job row whose every field repeats one number, so that a torn row shows.
JobRow RowOf(std::uint64_t number) {
  JobRow row{};
  row.id = static_cast<std::uint32_t>(number);
  row.operations_ended = row.operations_failed = row.bytes_moved = row.operations_open = number;
  std::memset(row.name, static_cast<int>('a' + number % 26), sizeof row.name - 1);
  std::memset(row.failure, static_cast<int>('a' + number % 26), sizeof row.failure - 1);
  return row;
}

TEST_F(Board, ShowsTheReaderWhatTheServiceWrote) {
  Result<BoardFile> file = BoardFile::Create(path_, 0644);
  ASSERT_TRUE(file.ok()) << file.error().text();
  Result<BoardView> view = BoardView::Open(path_);
  ASSERT_TRUE(view.ok()) << view.error().text();
  EXPECT_EQ(ReadRow(view->layout().jobs[3])->id, 0U) << "a free row";
  JobRow row = RowOf(7);
  WriteRow(file->layout().jobs[3], row);
  const std::optional<JobRow> read = ReadRow(view->layout().jobs[3]);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(std::memcmp(&*read, &row, sizeof row), 0);
}

// A hole that the file system cannot fill any more would end the service when it writes a row.
TEST_F(Board, HasAllOfItsBlocksBeforeItIsMapped) {
  Result<BoardFile> file = BoardFile::Create(path_, 0644);
  ASSERT_TRUE(file.ok());
  struct stat state {};
  ASSERT_EQ(::stat(path_.c_str(), &state), 0);
  EXPECT_GE(static_cast<std::size_t>(state.st_blocks) * 512, sizeof(BoardLayout));
}

TEST_F(Board, HasTheModeThatWasAskedForWhateverTheUmask) {
  const mode_t umask = ::umask(0077);
  Result<BoardFile> file = BoardFile::Create(path_, 0644);
  ::umask(umask);
  ASSERT_TRUE(file.ok());
  struct stat state {};
  ASSERT_EQ(::stat(path_.c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 07777, 0644U);
}

TEST_F(Board, ReplacesTheBoardOfADeadServiceAndGoesAwayWithItsOwner) {
  std::ofstream(path_) << "left behind";
  std::ofstream(path_ + ".new") << "left behind";
  {
    Result<BoardFile> file = BoardFile::Create(path_, 0600);
    ASSERT_TRUE(file.ok()) << file.error().text();
    EXPECT_TRUE(BoardView::Open(path_).ok());
    EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
    BoardFile moved = std::move(file).value();
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// What the flight recorder leaves of a job.
void RecordAJob(BoardFile& board, std::uint32_t id) {
  FlightJobRow row{};
  row.job_id = id;
  WriteRow(board.layout().flight_jobs[2], row);
}

std::uint32_t JobOnBoard(const std::string& path) {
  Result<BoardView> view = BoardView::Open(path);
  EXPECT_TRUE(view.ok()) << view.error().text();
  return view.ok() ? ReadRow(view->layout().flight_jobs[2])->job_id : 0;
}

TEST_F(Board, IsKeptBesideItsPathWhenItsServiceEndsAndHasRecordedSomething) {
  {
    Result<BoardFile> file = BoardFile::Create(path_, 0640);
    ASSERT_TRUE(file.ok());
    RecordAJob(*file, 7);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(JobOnBoard(PreviousBoardPath(path_)), 7U);
  struct stat state {};
  ASSERT_EQ(::stat(PreviousBoardPath(path_).c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 07777, 0640U);
}

TEST_F(Board, OfAKilledServiceIsKeptByTheNextOneThatStarts) {
  const pid_t service = ::fork();
  ASSERT_GE(service, 0);
  if (service == 0) {
    Result<BoardFile> file = BoardFile::Create(path_, 0600);
    if (file.ok()) RecordAJob(*file, 5);
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(service, nullptr, 0), service);
  Result<BoardFile> next = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->notice(), "");
  EXPECT_EQ(JobOnBoard(path_), 0U);
  EXPECT_EQ(JobOnBoard(PreviousBoardPath(path_)), 5U);
}

TEST_F(Board, ThatRecordedNothingDoesNotReplaceOneThatDid) {
  {
    Result<BoardFile> file = BoardFile::Create(path_, 0600);
    ASSERT_TRUE(file.ok());
    RecordAJob(*file, 9);
  }
  for (int start = 0; start < 2; ++start) ASSERT_TRUE(BoardFile::Create(path_, 0600).ok());
  EXPECT_EQ(JobOnBoard(PreviousBoardPath(path_)), 9U);
}

TEST_F(Board, OfAnotherVersionIsKeptToo) {
  {
    Result<BoardFile> file = BoardFile::Create(path_, 0600);
    ASSERT_TRUE(file.ok());
    file->layout().version = 1;
    std::filesystem::copy_file(path_, path_ + ".other");
  }
  std::filesystem::rename(path_ + ".other", path_);
  ASSERT_TRUE(BoardFile::Create(path_, 0600).ok());
  Result<BoardView> previous = BoardView::Open(PreviousBoardPath(path_));
  ASSERT_FALSE(previous.ok());
  EXPECT_EQ(previous.error().code(), Code::kVersionMismatch);
  EXPECT_NE(previous.error().text().find("version 1 "), std::string::npos);
}

TEST_F(Board, SaysWhyItCouldNotKeepTheLastOneAndStartsAllTheSame) {
  ASSERT_TRUE(std::filesystem::create_directory(PreviousBoardPath(path_)));
  Result<BoardFile> file = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(file.ok());
  RecordAJob(*file, 3);
  Result<BoardFile> next = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(next.ok());
  EXPECT_NE(next->notice().find(PreviousBoardPath(path_)), std::string::npos) << next->notice();
}

// Whether a service starts where there is room for its board and not for the last one's, in a file
// system that only this process sees. 2: it may not make one.
int StartsWhereBothDoNotFit(const std::string& folder) {
  const std::string options = fmt::format("size={}", sizeof(BoardLayout) * 3 / 2);
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    return 2;
  }
  const std::string path = folder + "/board";
  {
    Result<BoardFile> last = BoardFile::Create(path, 0600);
    if (!last) return 3;
    RecordAJob(*last, 5);
  }
  if (!std::filesystem::exists(PreviousBoardPath(path))) return 4;
  return BoardFile::Create(path, 0600).ok() && !std::filesystem::exists(PreviousBoardPath(path));
}

TEST_F(Board, TakesTheRoomOfTheLastOneWhereBothDoNotFit) {
  const std::string folder = path_ + ".mount";
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  const pid_t service = ::fork();
  ASSERT_GE(service, 0);
  if (service == 0) ::_exit(StartsWhereBothDoNotFit(folder));
  int status = 0;
  ASSERT_EQ(::waitpid(service, &status, 0), service);
  std::filesystem::remove(folder);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no mount namespace without root";
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST_F(Board, LeavesNothingBehindWhenItCannotBeMovedIntoPlace) {
  ASSERT_TRUE(std::filesystem::create_directory(path_));
  Result<BoardFile> file = BoardFile::Create(path_, 0600);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().text().find("move board to"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(Board, CannotBeCreatedInAFolderThatIsNotThere) {
  Result<BoardFile> file = BoardFile::Create(folder_ + "/none/board", 0600);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), Code::kNotFound);
}

TEST_F(Board, ReaderNamesAMissingFile) {
  Result<BoardView> view = BoardView::Open(path_);
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.error().code(), Code::kNotFound);
  EXPECT_NE(view.error().text().find(path_), std::string::npos);
}

TEST_F(Board, ReaderRefusesFilesThatAreShorterThanTheyClaim) {
  { std::ofstream(path_) << ""; }
  Result<BoardView> empty = BoardView::Open(path_);
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().code(), Code::kCorrupt);
  std::filesystem::remove(path_);

  Result<BoardFile> file = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(file.ok());
  std::filesystem::copy_file(path_, path_ + ".short");
  std::filesystem::resize_file(path_ + ".short", sizeof(BoardLayout) - 8);
  Result<BoardView> cut = BoardView::Open(path_ + ".short");
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.error().code(), Code::kVersionMismatch);
  EXPECT_NE(cut.error().text().find("cut short"), std::string::npos);
}

TEST_F(Board, ReaderRefusesAnotherMagicAndAnotherVersion) {
  Result<BoardFile> file = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(file.ok());
  file->layout().version = kBoardVersion + 1;
  Result<BoardView> newer = BoardView::Open(path_);
  ASSERT_FALSE(newer.ok());
  EXPECT_EQ(newer.error().code(), Code::kVersionMismatch);
  EXPECT_NE(newer.error().text().find("version " + std::to_string(kBoardVersion + 1)),
            std::string::npos);
  EXPECT_NE(newer.error().text().find("reads version " + std::to_string(kBoardVersion) + " "),
            std::string::npos);
  EXPECT_NE(newer.error().text().find("update this program"), std::string::npos);
  file->layout().version = kBoardVersion - 1;
  EXPECT_NE(BoardView::Open(path_).error().text().find("update the service"), std::string::npos);
  file->layout().magic = 0x7f454c46;
  Result<BoardView> other = BoardView::Open(path_);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), Code::kCorrupt);
}

TEST_F(Board, TextIsCutToItsFieldAndReadEvenWithoutItsNul) {
  char field[8];
  std::memset(field, 'x', sizeof field);
  SetText(field, "abc");
  EXPECT_EQ(GetText(field), "abc");
  EXPECT_EQ(field[7], '\0');
  SetText(field, "abcdefghijk");
  EXPECT_EQ(GetText(field), "abcdefg");
  SetText(field, "");
  EXPECT_EQ(GetText(field), "");
  std::memset(field, 'x', sizeof field);
  EXPECT_EQ(GetText(field), "xxxxxxxx");
}

TEST_F(Board, NeverShowsATornRowWhileItIsWritten) {
  Result<BoardFile> file = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(file.ok());
  Result<BoardView> view = BoardView::Open(path_);
  ASSERT_TRUE(view.ok());
  std::atomic<bool> stop{false};
  std::thread service([&] {
    for (std::uint64_t number = 1; !stop; ++number) {
      WriteRow(file->layout().jobs[0], RowOf(number));
      // A writer that never pauses would leave the reader almost no whole row to compare.
      std::this_thread::yield();
    }
  });
  std::uint64_t last = 0;
  for (int distinct = 0; distinct < 500;) {
    const std::optional<JobRow> row = ReadRow(view->layout().jobs[0]);
    if (!row || row->id == last) continue;
    const JobRow whole = RowOf(row->id);
    ASSERT_EQ(std::memcmp(&*row, &whole, sizeof whole), 0) << "torn at " << row->id;
    ASSERT_GT(row->id, last) << "went back";
    last = row->id;
    ++distinct;
  }
  stop = true;
  service.join();
}

TEST_F(Board, ARowWhoseWriterStoppedInTheMiddleIsNothingAndTheOthersStayReadable) {
  Result<BoardFile> file = BoardFile::Create(path_, 0600);
  ASSERT_TRUE(file.ok());
  WriteRow(file->layout().jobs[0], RowOf(1));
  WriteRow(file->layout().jobs[1], RowOf(2));
  file->layout().jobs[0].version.fetch_add(1);  // as after the first store of WriteRow
  Result<BoardView> view = BoardView::Open(path_);
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(ReadRow(view->layout().jobs[0]).has_value());
  EXPECT_EQ(ReadRow(view->layout().jobs[1])->id, 2U);
}

TEST_F(Board, StaysReadableAfterItsServiceWasKilled) {
  const pid_t service = ::fork();
  ASSERT_GE(service, 0);
  if (service == 0) {
    Result<BoardFile> file = BoardFile::Create(path_, 0600);
    if (file.ok()) WriteRow(file->layout().jobs[0], RowOf(5));
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(service, nullptr, 0), service);
  Result<BoardView> view = BoardView::Open(path_);
  ASSERT_TRUE(view.ok()) << view.error().text();
  EXPECT_EQ(ReadRow(view->layout().jobs[0])->id, 5U);
}

}  // namespace
}  // namespace headrace::ipc
