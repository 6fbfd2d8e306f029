// The machine that the environment describes.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

std::string Setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv((std::string("HEADRACE_CUDA_DOUBLE_") + name).c_str());
  return value != nullptr ? value : otherwise;
}

std::vector<std::string> Parts(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::set<std::pair<int, int>> ReadPeers(const std::string& text, int devices_count) {
  std::set<std::pair<int, int>> reaches;
  for (int from = 0; text == "all" && from < devices_count; ++from) {
    for (int to = 0; to < devices_count; ++to) reaches.emplace(from, to);
  }
  if (text == "all" || text == "none") return reaches;
  for (const std::string& pair : Parts(text, ',')) {
    const auto ends = Parts(pair, '-');
    if (ends.size() == 2) reaches.emplace(std::stoi(ends[0]), std::stoi(ends[1]));
  }
  return reaches;
}

}  // namespace

Settings ReadSettings() {
  Settings settings;
  settings.devices_count = std::min(kDevicesMax, std::stoi(Setting("DEVICES", "2")));
  settings.memory_size = std::stoull(Setting("MEMORY", std::to_string(settings.memory_size)));
  settings.version = std::stoi(Setting("VERSION", std::to_string(settings.version)));
  settings.pid = std::stoll(Setting("PID", std::to_string(::getpid())));
  settings.machine = Setting("MACHINE", settings.machine);
  settings.lacks = Setting("LACKS", "");
  settings.waits = Setting("WAITS", "");
  settings.seed = static_cast<std::uint32_t>(std::stoul(Setting("SEED", "0")));
  settings.multiprocessors = std::stoi(Setting("MULTIPROCESSORS", "16"));
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections != nullptr) {
    settings.queues_count = std::clamp(std::atoi(connections), 1, static_cast<int>(kQueuesMax));
  }
  settings.multicast_count = std::stoi(Setting("MULTICAST", "0"));
  settings.reaches = ReadPeers(Setting("PEERS", "all"), settings.devices_count);
  for (int number = 0; number < settings.devices_count; ++number) {
    settings.visible.push_back(number);
  }
  const std::string visible = Setting("VISIBLE", "all");
  if (visible == "all") return settings;
  settings.visible.clear();
  for (const std::string& number : Parts(visible, ',')) {
    // The first number that names no GPU ends the list (CUDA Programming Guide, CUDA Environment
    // Variables, CUDA_VISIBLE_DEVICES).
    if (number.find_first_not_of("0123456789") != std::string::npos || number.empty()) break;
    if (std::stoi(number) >= settings.devices_count) break;
    settings.visible.push_back(std::stoi(number));
  }
  return settings;
}

}  // namespace headrace::cuda_double
