#include "ipc/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/file_mapping.hpp>
#include <cerrno>
#include <filesystem>

#include "ipc/base/check.h"
#include "ipc/base/fd.h"

namespace headrace::ipc {

namespace bip = boost::interprocess;

void SetText(std::span<char> field, std::string_view text) {
  HR_CHECK(!field.empty());
  const std::size_t length = std::min(text.size(), field.size() - 1);
  std::copy_n(text.data(), length, field.data());  // not memcpy: an empty text may point nowhere
  std::fill(field.begin() + static_cast<std::ptrdiff_t>(length), field.end(), '\0');
}

std::string_view GetText(std::span<const char> field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  return {field.data(), static_cast<std::size_t>(end - field.begin())};
}

namespace {

// Whether some job has, or had, a place in the flight recorder.
bool RecordedSomething(const BoardLayout& layout) {
  return std::ranges::any_of(
      layout.flight_jobs, [](const BoardSlot<FlightJobRow>& slot) { return slot.row.job_id != 0; });
}

// Whether the file is worth keeping: a board on which jobs were recorded, or one of another
// version, whose reader will know. A service that cannot start and is started again and again must
// not put its empty boards in the place of the last one that had something to tell.
bool IsWorthKeeping(const std::string& path) {
  struct stat state {};
  if (::lstat(path.c_str(), &state) != 0 || !S_ISREG(state.st_mode)) return false;
  Result<BoardView> board = BoardView::Open(path);
  if (board) return RecordedSomething(board->layout());
  return board.error().code() == Code::kVersionMismatch;
}

// Whether a board fits into the file system of `fd` once that file is gone.
bool MakesRoom(const std::string& path, int fd) {
  struct stat file {};
  struct statvfs system {};
  if (::lstat(path.c_str(), &file) != 0 || ::fstatvfs(fd, &system) != 0) return false;
  constexpr std::uint64_t kStatBlock = 512;
  const std::uint64_t free = std::uint64_t{system.f_bavail} * system.f_frsize;
  return free + static_cast<std::uint64_t>(file.st_blocks) * kStatBlock >= sizeof(BoardLayout);
}

}  // namespace

std::string BoardPathBeside(const std::string& socket_path) {
  return (std::filesystem::path(socket_path).parent_path() / "board").string();
}

std::string PreviousBoardPath(const std::string& path) { return path + ".previous"; }

Result<BoardFile> BoardFile::Create(const std::string& path, std::uint32_t mode) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  UniqueFd fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return SystemError("create board " + fresh, errno);
  std::string notice;
  if (IsWorthKeeping(path) && ::rename(path.c_str(), PreviousBoardPath(path).c_str()) != 0) {
    notice =
        SystemError("keep the last service's board as " + PreviousBoardPath(path), errno).text();
  }
  Result<BoardFile> board = Fill(fd.get(), fresh, path, mode);
  if (!board) {
    ::unlink(fresh.c_str());
  } else {
    board->notice_ = std::move(notice);
  }
  return board;
}

Result<BoardFile> BoardFile::Fill(int fd, const std::string& fresh, const std::string& path,
                                  std::uint32_t mode) {
  // Allocated, not only sized: on a full file system a store to the mapping would be a SIGBUS.
  int number = ::posix_fallocate(fd, 0, sizeof(BoardLayout));
  // A new service is worth more than what the last one recorded.
  if (number == ENOSPC && ::ftruncate(fd, 0) == 0 && MakesRoom(PreviousBoardPath(path), fd) &&
      ::unlink(PreviousBoardPath(path).c_str()) == 0) {
    number = ::posix_fallocate(fd, 0, sizeof(BoardLayout));
  }
  if (number != 0) return SystemError("allocate board " + fresh, number);
  if (::fchmod(fd, mode) != 0) return SystemError("set the mode of board " + fresh, errno);
  try {
    bip::mapped_region region(bip::file_mapping(fresh.c_str(), bip::read_write), bip::read_write, 0,
                              sizeof(BoardLayout));
    auto& layout = *static_cast<BoardLayout*>(region.get_address());
    layout.magic = kBoardMagic;
    layout.version = kBoardVersion;
    layout.size = sizeof(BoardLayout);
    if (::rename(fresh.c_str(), path.c_str()) != 0) {
      return SystemError("move board to " + path, errno);
    }
    return BoardFile(path, std::move(region));
  } catch (const bip::interprocess_exception& error) {
    return SystemError("map board " + fresh, error.get_native_error());
  }
}

BoardFile::~BoardFile() {
  if (region_.get_address() == nullptr) return;
  const bool kept =
      RecordedSomething(layout()) && ::rename(path_.c_str(), PreviousBoardPath(path_).c_str()) == 0;
  if (!kept) ::unlink(path_.c_str());
}

namespace {

const char* RemedyOf(std::uint32_t version) {
  if (version > kBoardVersion) return "update this program, which is older";
  if (version == kBoardVersion) return "the file was cut short: see what else writes to it";
  return "update the service, which is older, or use the program that came with it";
}

}  // namespace

Result<BoardView> BoardView::Open(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return SystemError("open board " + path, errno);
  if (static_cast<std::size_t>(state.st_size) < offsetof(BoardLayout, service)) {
    return Error(Code::kCorrupt,
                 fmt::format("board {}: {} bytes is too short to be a board", path, state.st_size));
  }
  try {
    bip::mapped_region region(bip::file_mapping(path.c_str(), bip::read_only), bip::read_only, 0,
                              static_cast<std::size_t>(state.st_size));
    const auto& layout = *static_cast<const BoardLayout*>(region.get_address());
    if (layout.magic != kBoardMagic) {
      return Error(Code::kCorrupt, fmt::format("{} is not a board: magic {:#x}, expected {:#x}",
                                               path, layout.magic, kBoardMagic));
    }
    if (layout.version != kBoardVersion || layout.size != sizeof(BoardLayout) ||
        region.get_size() < sizeof(BoardLayout)) {
      return Error(Code::kVersionMismatch,
                   fmt::format("board {} has version {} ({} bytes); this program reads version {} "
                               "({} bytes): {}",
                               path, layout.version, layout.size, kBoardVersion,
                               sizeof(BoardLayout), RemedyOf(layout.version)));
    }
    return BoardView(std::move(region));
  } catch (const bip::interprocess_exception& error) {
    return SystemError("map board " + path, error.get_native_error());
  }
}

}  // namespace headrace::ipc
