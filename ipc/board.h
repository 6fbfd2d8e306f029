// The two ends of the board: the service creates and writes it, the CLI maps it read-only.
// Boost.Interprocess maps the file at both ends.
#pragma once

#include <atomic>
#include <boost/interprocess/mapped_region.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ipc/base/check.h"
#include "ipc/base/result.h"
#include "ipc/board_layout.h"
#include "ipc/shared_words.h"

namespace headrace::ipc {

// Copies `row` into its slot under the version word. One writer per slot.
template <typename Row>
void WriteRow(BoardSlot<Row>& slot, const Row& row);

// A whole row, or nothing when the writer was in the middle of it at each of a bounded number of
// looks (a service that was stopped while it wrote).
template <typename Row>
std::optional<Row> ReadRow(const BoardSlot<Row>& slot);

// Fills a fixed text field, cutting what does not fit; always ends in NUL.
void SetText(std::span<char> field, std::string_view text);
// What a text field says; safe when the NUL is missing.
std::string_view GetText(std::span<const char> field);

// The board of the service that listens at `socket_path`, unless it was configured otherwise: the
// file "board" beside the socket.
std::string BoardPathBeside(const std::string& socket_path);

// Where the board of the service before is kept, whose flight recorder people may still want.
std::string PreviousBoardPath(const std::string& path);

// The service's end. The file is written beside `path` and moved there whole, so that a reader
// never maps half a board. A board that recorded something is moved to PreviousBoardPath when its
// service ends, or, where that was killed, when the next one starts; another one is removed.
class BoardFile {
 public:
  static Result<BoardFile> Create(const std::string& path, std::uint32_t mode);
  BoardFile(BoardFile&& other) noexcept = default;
  BoardFile& operator=(BoardFile&& other) noexcept = delete;
  ~BoardFile();

  BoardLayout& layout() const {
    HR_CHECK(region_.get_size() >= sizeof(BoardLayout), path_);
    return *static_cast<BoardLayout*>(region_.get_address());
  }
  // Why the board that stood at the path could not be kept; empty when it was, or there was none.
  const std::string& notice() const { return notice_; }

 private:
  BoardFile(std::string path, boost::interprocess::mapped_region region)
      : path_(std::move(path)), region_(std::move(region)) {}

  // Sizes, maps and initialises the open file `fresh`, then moves it to `path`.
  static Result<BoardFile> Fill(int fd, const std::string& fresh, const std::string& path,
                                std::uint32_t mode);

  std::string path_;
  boost::interprocess::mapped_region region_;
  std::string notice_;
};

// A reader's end: any process that may open the file.
class BoardView {
 public:
  // Errors: no file (is the service running?), not a board, another version (both are named).
  static Result<BoardView> Open(const std::string& path);
  const BoardLayout& layout() const {
    HR_CHECK(region_.get_size() >= sizeof(BoardLayout), region_.get_size());
    return *static_cast<const BoardLayout*>(region_.get_address());
  }

 private:
  explicit BoardView(boost::interprocess::mapped_region region) : region_(std::move(region)) {}
  boost::interprocess::mapped_region region_;
};

namespace board_internal {
inline constexpr int kLooksMax = 1000;
}  // namespace board_internal

template <typename Row>
void WriteRow(BoardSlot<Row>& slot, const Row& row) {
  const std::uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  // Release fence: a reader that sees any new word also sees the odd version at its second look.
  std::atomic_thread_fence(std::memory_order_release);
  StoreWords(&slot.row, &row, sizeof row);
  slot.version.store(version + 2, std::memory_order_release);  // pairs with ReadRow's first load
}

template <typename Row>
std::optional<Row> ReadRow(const BoardSlot<Row>& slot) {
  for (int look = 0; look < board_internal::kLooksMax; ++look) {
    const std::uint64_t before = slot.version.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    Row row;
    LoadWords(&row, &slot.row, sizeof row);
    // Acquire fence: pairs with WriteRow's release fence.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.version.load(std::memory_order_relaxed) == before) return row;
  }
  return std::nullopt;
}

}  // namespace headrace::ipc
