#include "service/config_keys.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>
#include <sstream>
#include <vector>

namespace headrace::service {
namespace {

using Kind = ConfigKey::Kind;

constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;
// What a unix socket address holds (sun_path), less its NUL; the lock file beside it has no limit
// of this kind.
constexpr std::uint64_t kSocketPathMax = 107;
constexpr std::uint64_t kPathMax = 4095;

constexpr std::array kKeys = {
    ConfigKey{"socket", Kind::kPath, &Config::socket_path, 1, kSocketPathMax,
              "unix socket that clients attach to"},
    ConfigKey{"socket_mode", Kind::kMode, &Config::socket_mode, 0, 0777,
              "permissions of the socket"},
    ConfigKey{"board", Kind::kPath, &Config::board_path, 1, kPathMax,
              "file that headracectl reads"},
    ConfigKey{"board_mode", Kind::kMode, &Config::board_mode, 0, 0777, "permissions of the board"},
    ConfigKey{"lane_threads", Kind::kInteger, &Config::lane_threads, 0, 1024,
              "threads that share one operation; 0: one per core"},
    ConfigKey{"credit_bytes", Kind::kInteger, &Config::credit_bytes, 4096, std::uint64_t{1} << 40U,
              "bytes in flight per job and lane"},
    ConfigKey{"spin_us", Kind::kInteger, &Config::spin_us, 0, 1'000'000,
              "microseconds that an idle data path looks for work before it sleeps"},
    ConfigKey{"operation_timeout_ms", Kind::kInteger, &Config::operation_timeout_ms, 1, kDayMs,
              "an operation that is open longer ends with an error"},
    ConfigKey{"drain_timeout_ms", Kind::kInteger, &Config::drain_timeout_ms, 0, kDayMs,
              "what is open that long after SIGTERM ends with an error"},
    ConfigKey{"dedicated_lanes", Kind::kSwitch, &Config::dedicated_lanes, 0, 0,
              "lanes on threads of their own instead of dispatch's"},
    ConfigKey{"log_level", Kind::kChoice, &Config::log_level, 0, 0,
              "least important message that is logged"},
};

constexpr std::array<std::string_view, 6> kLogLevels = {"trace",   "debug", "info",
                                                        "warning", "error", "off"};

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kPath:
      return "a path";
    case Kind::kMode:
      return "an octal mode like 0o666";
    case Kind::kInteger:
      return "an integer";
    case Kind::kSwitch:
      return "true or false";
    case Kind::kChoice:
      return "one of the words trace, debug, info, warning, error, off";
  }
  return "";
}

Error WrongType(const ConfigKey& key, const std::string& given) {
  return Wrong(fmt::format("{} is {}, given is {}", key.name, KindName(key.kind), given));
}

std::string Quoted(const ConfigValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("\"{}\"", *text);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  return std::get<bool>(value) ? "true" : "false";
}

// As TOML; toml++ knows how to quote what needs more than two quotation marks.
std::string QuotedText(const std::string& text) {
  const bool plain = std::none_of(text.begin(), text.end(), [](char letter) {
    return letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < ' ';
  });
  if (plain) return fmt::format("\"{}\"", text);
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

Status SetNumber(const ConfigKey& key, std::int64_t number, Config& config) {
  const bool in_range = number >= 0 && static_cast<std::uint64_t>(number) >= key.min &&
                        static_cast<std::uint64_t>(number) <= key.max;
  if (!in_range && key.kind == Kind::kMode) {
    return Wrong(fmt::format("{} is {}, outside of 0o0 to 0o{:o}: write it in octal, like 0o666",
                             key.name, number, key.max));
  }
  if (!in_range) {
    return Wrong(fmt::format("{} is {}, outside of {} to {}", key.name, number, key.min, key.max));
  }
  config.*std::get<std::uint64_t Config::*>(key.member) = static_cast<std::uint64_t>(number);
  return {};
}

Status SetText(const ConfigKey& key, const std::string& text, Config& config) {
  if (key.kind == Kind::kChoice &&
      std::find(kLogLevels.begin(), kLogLevels.end(), text) == kLogLevels.end()) {
    return WrongType(key, fmt::format("\"{}\"", text));
  }
  if (key.kind == Kind::kPath) {
    if (text.empty() || text.front() != '/') {
      return Wrong(
          fmt::format("{} is \"{}\": give an absolute path, it begins with /", key.name, text));
    }
    if (text.size() > key.max) {
      return Wrong(
          fmt::format("{} has {} bytes, at most {} fit: {}", key.name, text.size(), key.max, text));
    }
    if (text.find('\0') != std::string::npos) {
      return Wrong(fmt::format("{} has a NUL byte in it", key.name));
    }
  }
  config.*std::get<std::string Config::*>(key.member) = text;
  return {};
}

// The whole of `text` as a number in `base`.
bool ParseNumber(std::string_view text, int base, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

std::size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

const ConfigKey* FindConfigKey(std::string_view name) {
  const auto* found = std::find_if(kKeys.begin(), kKeys.end(),
                                   [name](const ConfigKey& key) { return key.name == name; });
  return found == kKeys.end() ? nullptr : found;
}

std::string EnvironmentName(const ConfigKey& key) {
  std::string name = "HEADRACE_";
  for (char letter : key.name) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return name;
}

std::string FlagName(const ConfigKey& key) {
  std::string name = "--" + std::string(key.name);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

Status SetConfigValue(const ConfigKey& key, const ConfigValue& value, Config& config) {
  switch (key.kind) {
    case Kind::kPath:
    case Kind::kChoice:
      if (const auto* text = std::get_if<std::string>(&value)) return SetText(key, *text, config);
      break;
    case Kind::kMode:
    case Kind::kInteger:
      if (const auto* number = std::get_if<std::int64_t>(&value)) {
        return SetNumber(key, *number, config);
      }
      break;
    case Kind::kSwitch:
      if (const auto* on = std::get_if<bool>(&value)) {
        config.*std::get<bool Config::*>(key.member) = *on;
        return {};
      }
      break;
  }
  return WrongType(key, Quoted(value));
}

Status SetConfigText(const ConfigKey& key, const std::string& text, Config& config) {
  const std::string quoted = fmt::format("\"{}\"", text);
  switch (key.kind) {
    case Kind::kPath:
    case Kind::kChoice:
      return SetText(key, text, config);
    case Kind::kMode: {
      // "666", "0666" and "0o666" are all octal here: nobody means another base for a mode.
      const std::string_view digits =
          text.starts_with("0o") ? std::string_view(text).substr(2) : std::string_view(text);
      std::int64_t number = 0;
      if (!ParseNumber(digits, 8, number)) return WrongType(key, quoted);
      return SetNumber(key, number, config);
    }
    case Kind::kInteger: {
      std::int64_t number = 0;
      if (!ParseNumber(text, 10, number)) return WrongType(key, quoted);
      return SetNumber(key, number, config);
    }
    case Kind::kSwitch:
      if (text != "true" && text != "false") return WrongType(key, quoted);
      return SetConfigValue(key, text == "true", config);
  }
  return WrongType(key, quoted);
}

std::string PrintConfigValue(const ConfigKey& key, const Config& config) {
  if (const auto* text = std::get_if<std::string Config::*>(&key.member)) {
    return QuotedText(config.**text);
  }
  if (const auto* on = std::get_if<bool Config::*>(&key.member)) {
    return config.**on ? "true" : "false";
  }
  const std::uint64_t number = config.*std::get<std::uint64_t Config::*>(key.member);
  return key.kind == Kind::kMode ? fmt::format("0o{:03o}", number) : std::to_string(number);
}

std::string NearestName(std::string_view name, std::span<const std::string> candidates) {
  std::string nearest;
  // Further away than a third of the name is another word, not a slip.
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = EditDistance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace headrace::service
