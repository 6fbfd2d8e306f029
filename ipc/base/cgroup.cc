#include "ipc/base/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace headrace {
namespace {

constexpr std::string_view kRoot = "/sys/fs/cgroup";
constexpr std::size_t kDepthMax = 64;

// Whether `list`, "cpu,cpuacct", names the controller. Version 2 has an empty one.
bool Names(std::string_view list, std::string_view controller) {
  while (list != controller) {
    const std::size_t comma = list.find(',');
    if (comma == std::string_view::npos) return false;
    if (list.substr(0, comma) == controller) return true;
    list.remove_prefix(comma + 1);
  }
  return true;
}

// The path in a line "5:cpu,cpuacct:/path"; nothing where it is another controller's.
std::optional<std::string_view> PathIn(std::string_view line, std::string_view controller) {
  const std::size_t first = line.find(':');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = line.find(':', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  if (!Names(line.substr(first + 1, second - first - 1), controller)) return std::nullopt;
  return line.substr(second + 1);
}

}  // namespace

std::vector<std::string> CgroupFiles(std::string_view groups, std::string_view controller,
                                     std::string_view name) {
  std::optional<std::string_view> path;
  while (!groups.empty() && !path) {
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    path = PathIn(groups.substr(0, end), controller);
    groups.remove_prefix(std::min(end + 1, groups.size()));
  }
  std::vector<std::string> files;
  while (path && files.size() < kDepthMax) {
    while (path->ends_with('/')) path->remove_suffix(1);
    files.push_back(
        fmt::format("{}{}{}{}/{}", kRoot, controller.empty() ? "" : "/", controller, *path, name));
    if (path->empty()) break;
    path = path->substr(0, path->rfind('/') == std::string_view::npos ? 0 : path->rfind('/'));
  }
  return files;
}

}  // namespace headrace
