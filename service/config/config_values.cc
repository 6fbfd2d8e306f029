// What a value may be, by the kind of its key.
#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "service/config/config_address.h"
#include "service/config/config_keys.h"

namespace headrace::service {
namespace {

using Kind = ConfigKey::Kind;

constexpr std::string_view kAutoText = "auto";

constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

// "4 KiB", "1 TiB"; as a number where no unit divides it.
std::string BinaryText(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"", " KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  for (; bytes > 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

std::span<const std::string_view> NamesOf(const ConfigKey& key) {
  return std::get<ConfigKey::Choice>(key.member).names;
}

std::string KindName(const ConfigKey& key) {
  switch (key.kind) {
    case Kind::kPath:
      return "a path";
    case Kind::kLibrary:
      return "a path or the name of a library";
    case Kind::kMode:
      return "an octal mode like 0o666";
    case Kind::kInteger:
      return "an integer";
    case Kind::kQuota:
      return "an integer or \"auto\"";
    case Kind::kSwitch:
      return "true or false";
    case Kind::kChoice:
      return fmt::format("one of {}", fmt::join(NamesOf(key), ", "));
    case Kind::kName:
      return "a name";
    case Kind::kListen:
    case Kind::kAddress:
      return "an address host:port";
    case Kind::kPeers:
      return "a list name=host:port,...";
    case Kind::kRails:
      return "a list of network devices";
    case Kind::kText:
      return "text";
  }
  return "";
}

Error WrongType(const ConfigKey& key, const std::string& given) {
  return Wrong(fmt::format("{} is {}, given is {}", key.name, KindName(key), given));
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

// What the loader is asked for: a name has no /, and anything else would depend on where the
// service was started.
bool IsLibraryName(const ConfigKey& key, const std::string& text) {
  return key.kind == Kind::kLibrary && text.find('/') == std::string::npos;
}

Status CheckPath(const ConfigKey& key, const std::string& text) {
  if (text.empty() && key.min == 0) return {};
  if (text.empty() || (text.front() != '/' && !IsLibraryName(key, text))) {
    return Wrong(
        fmt::format("{} is \"{}\": give an absolute path, it begins with /{}", key.name, text,
                    key.kind == Kind::kLibrary ? ", or a library's name without any /" : ""));
  }
  if (text.size() > key.max) {
    return Wrong(
        fmt::format("{} has {} bytes, at most {} fit: {}", key.name, text.size(), key.max, text));
  }
  if (text.find('\0') != std::string::npos) {
    return Wrong(fmt::format("{} has a NUL byte in it", key.name));
  }
  return {};
}

Status CheckPlainText(const ConfigKey& key, const std::string& text) {
  if (text.size() > key.max) {
    return Wrong(fmt::format("{} has {} bytes, at most {} fit", key.name, text.size(), key.max));
  }
  const bool printable = std::all_of(text.begin(), text.end(),
                                     [](char letter) { return letter > ' ' && letter <= '~'; });
  if (printable) return {};
  return Wrong(
      fmt::format("{} is \"{}\": only printable ASCII without blanks is possible", key.name, text));
}

// Parses the address; an empty one stays empty. Gives it in the form that is stored.
Result<std::string> NormalAddress(const ConfigKey& key, const std::string& text) {
  if (text.empty()) return text;
  Result<HostPort> address =
      key.kind == Kind::kListen ? ParseListenAddress(text) : ParseHostPort(text);
  if (!address) return address.error().Within(key.name);
  return address->Text();
}

Status CheckText(const ConfigKey& key, const std::string& text) {
  Status status;
  switch (key.kind) {
    case Kind::kPath:
    case Kind::kLibrary:
      return CheckPath(key, text);
    case Kind::kText:
      return CheckPlainText(key, text);
    case Kind::kName:
      if (!text.empty()) status = CheckNodeName(text);
      break;
    case Kind::kPeers:
      if (Result<std::vector<ConfiguredPeer>> peers = ParsePeers(text); !peers) {
        status = peers.error();
      }
      break;
    case Kind::kRails:
      if (Result<std::vector<std::string>> rails = ParseRails(text); !rails) status = rails.error();
      break;
    default:
      break;
  }
  return status ? Status() : status.error().Within(key.name);
}

Status SetChoice(const ConfigKey& key, const std::string& text, Config& config) {
  const std::span<const std::string_view> names = NamesOf(key);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return WrongType(key, fmt::format("\"{}\"", text));
  std::get<ConfigKey::Choice>(key.member)
      .set(config, static_cast<std::size_t>(found - names.begin()));
  return {};
}

Status SetText(const ConfigKey& key, const std::string& text, Config& config) {
  if (key.kind == Kind::kChoice) return SetChoice(key, text, config);
  std::string& member = config.*std::get<std::string Config::*>(key.member);
  if (key.kind == Kind::kListen || key.kind == Kind::kAddress) {
    Result<std::string> address = NormalAddress(key, text);
    if (!address) return address.error();
    member = std::move(address).value();
    return {};
  }
  if (Status status = CheckText(key, text); !status) return status;
  member = text;
  return {};
}

// The whole of `text` as a number in `base`.
bool ParseNumber(std::string_view text, int base, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string AllowedValues(const ConfigKey& key) {
  if (key.kind == Kind::kChoice) return fmt::format("{}", fmt::join(NamesOf(key), ", "));
  if (key.kind != Kind::kInteger) return "";
  // What no machine reaches is no limit to a person.
  constexpr std::uint64_t kLimitShownMax = std::uint64_t{1} << 40U;
  if (key.max > kLimitShownMax) return fmt::format("{} or more", key.min);
  if (key.name.ends_with("_bytes")) {
    return fmt::format("{} to {}", BinaryText(key.min), BinaryText(key.max));
  }
  if (key.name.ends_with("_ms") && key.max == kDayMs) {
    return fmt::format("{} to {}, a day", key.min, key.max);
  }
  return fmt::format("{} to {}", key.min, key.max);
}

Status SetConfigValue(const ConfigKey& key, const ConfigValue& value, Config& config) {
  switch (key.kind) {
    case Kind::kQuota:
      if (const auto* text = std::get_if<std::string>(&value); text && *text == kAutoText) {
        config.*std::get<std::uint64_t Config::*>(key.member) = kQuotaAuto;
        return {};
      }
      [[fallthrough]];
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
    default:
      if (const auto* text = std::get_if<std::string>(&value)) return SetText(key, *text, config);
      break;
  }
  return WrongType(key, Quoted(value));
}

Status SetConfigText(const ConfigKey& key, const std::string& text, Config& config) {
  const std::string quoted = fmt::format("\"{}\"", text);
  switch (key.kind) {
    case Kind::kMode: {
      // "666", "0666" and "0o666" are all octal here: nobody means another base for a mode.
      const std::string_view digits =
          text.starts_with("0o") ? std::string_view(text).substr(2) : std::string_view(text);
      std::int64_t number = 0;
      if (!ParseNumber(digits, 8, number)) return WrongType(key, quoted);
      return SetNumber(key, number, config);
    }
    case Kind::kQuota:
      if (text == kAutoText) return SetConfigValue(key, text, config);
      [[fallthrough]];
    case Kind::kInteger: {
      std::int64_t number = 0;
      if (!ParseNumber(text, 10, number)) return WrongType(key, quoted);
      return SetNumber(key, number, config);
    }
    case Kind::kSwitch:
      if (text != "true" && text != "false") return WrongType(key, quoted);
      return SetConfigValue(key, text == "true", config);
    default:
      return SetText(key, text, config);
  }
}

std::string PrintConfigValue(const ConfigKey& key, const Config& config) {
  if (const auto* text = std::get_if<std::string Config::*>(&key.member)) {
    return QuotedText(config.**text);
  }
  if (const auto* on = std::get_if<bool Config::*>(&key.member)) {
    return config.**on ? "true" : "false";
  }
  if (const auto* choice = std::get_if<ConfigKey::Choice>(&key.member)) {
    return QuotedText(std::string(choice->names[choice->get(config)]));
  }
  const std::uint64_t number = config.*std::get<std::uint64_t Config::*>(key.member);
  if (key.kind == Kind::kQuota && number == kQuotaAuto) return QuotedText(std::string(kAutoText));
  return key.kind == Kind::kMode ? fmt::format("0o{:03o}", number) : std::to_string(number);
}

}  // namespace headrace::service
