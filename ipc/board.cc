#include "ipc/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/file_mapping.hpp>
#include <cerrno>
#include <cstring>

#include "ipc/base/fd.h"

namespace headrace::ipc {

namespace bip = boost::interprocess;

namespace board_internal {

void StoreWords(void* target, const void* source, std::size_t size) {
  auto* words = static_cast<std::uint64_t*>(target);
  for (std::size_t i = 0; i < size / 8; ++i) {
    std::uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(source) + i * 8, 8);
    std::atomic_ref<std::uint64_t>(words[i]).store(word, std::memory_order_relaxed);
  }
}

void LoadWords(void* target, const void* source, std::size_t size) {
  // atomic_ref takes no const object; the word is only loaded.
  auto* words = static_cast<std::uint64_t*>(const_cast<void*>(source));
  for (std::size_t i = 0; i < size / 8; ++i) {
    const std::uint64_t word =
        std::atomic_ref<std::uint64_t>(words[i]).load(std::memory_order_relaxed);
    std::memcpy(static_cast<std::byte*>(target) + i * 8, &word, 8);
  }
}

}  // namespace board_internal

void SetText(std::span<char> field, std::string_view text) {
  const std::size_t length = std::min(text.size(), field.size() - 1);
  std::memcpy(field.data(), text.data(), length);
  std::fill(field.begin() + static_cast<std::ptrdiff_t>(length), field.end(), '\0');
}

std::string_view GetText(std::span<const char> field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  return {field.data(), static_cast<std::size_t>(end - field.begin())};
}

Result<BoardFile> BoardFile::Create(const std::string& path, std::uint32_t mode) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  UniqueFd fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return SystemError("create board " + fresh, errno);
  if (::ftruncate(fd.get(), sizeof(BoardLayout)) != 0 || ::fchmod(fd.get(), mode) != 0) {
    return SystemError("size board " + fresh, errno);
  }
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
    return Error(Code::kInternal, fmt::format("map board {}: {}", fresh, error.what()));
  }
}

BoardFile::~BoardFile() {
  if (region_.get_address() != nullptr) ::unlink(path_.c_str());
}

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
      return Error(
          Code::kVersionMismatch,
          fmt::format("board {} has version {} ({} bytes); this program reads version {} "
                      "({} bytes): use the headracectl that came with the service",
                      path, layout.version, layout.size, kBoardVersion, sizeof(BoardLayout)));
    }
    return BoardView(std::move(region));
  } catch (const bip::interprocess_exception& error) {
    return Error(Code::kPermissionDenied, fmt::format("map board {}: {}", path, error.what()));
  }
}

}  // namespace headrace::ipc
