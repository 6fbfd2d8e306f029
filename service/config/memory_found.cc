#include "service/config/memory_found.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "ipc/base/cgroup.h"
#include "ipc/base/file.h"

namespace headrace::service {
namespace {

struct LimitFile {
  std::string_view controller;
  std::string_view name;
};
// A machine has one of them, or, while it changes from one to the other, both.
constexpr LimitFile kLimitFiles[] = {{"", "memory.max"}, {"memory", "memory.limit_in_bytes"}};

// Nothing for "max", and for what is no number. Version 1 writes a number that no machine has.
std::optional<std::uint64_t> ParseBytes(std::string_view text) {
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc()) return std::nullopt;
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  return rest.empty() || rest == "\n" ? std::optional(bytes) : std::nullopt;
}

std::string ReadOr(const std::string& path) {
  Result<std::string> text = ReadSmallFile(path, "not a file of the kernel");
  return text ? std::move(text).value() : std::string();
}

}  // namespace

MemoryFound FindMemory(std::uint64_t machine_bytes, const std::string& groups,
                       const ReadText& read) {
  MemoryFound found{.bytes = machine_bytes, .limited_by = {}};
  for (const LimitFile& file : kLimitFiles) {
    for (const std::string& path : CgroupFiles(groups, file.controller, file.name)) {
      const std::optional<std::uint64_t> limit = ParseBytes(read(path));
      if (limit && *limit < found.bytes) found = {.bytes = *limit, .limited_by = path};
    }
  }
  return found;
}

MemoryFound FindOwnMemory() {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return FindMemory(machine, ReadOr("/proc/self/cgroup"), ReadOr);
}

std::uint64_t FindMappingsMax() {
  constexpr std::uint64_t kKernelsDefault = 65530;
  const std::string text = ReadOr("/proc/sys/vm/max_map_count");
  std::uint64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count != 0 ? count : kKernelsDefault;
}

// 0 would be no limit at all.
std::uint64_t DefaultMemoryPerUid(const MemoryFound& memory) {
  return std::max<std::uint64_t>(memory.bytes - memory.bytes / 4, 1);
}

std::string DescribeDefaultMemory(const MemoryFound& memory) {
  const std::string whose = memory.limited_by.empty()
                                ? std::string("that this machine has")
                                : fmt::format("that {} allows", memory.limited_by);
  return fmt::format("{} MiB, three quarters of the {} MiB {}", DefaultMemoryPerUid(memory) >> 20U,
                     memory.bytes >> 20U, whose);
}

}  // namespace headrace::service
