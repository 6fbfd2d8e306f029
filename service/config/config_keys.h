// The table of keys: one row per member of Config, with its range and its help. Flags, environment
// and file all go through it, so a key means the same and is checked the same wherever it stands.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ipc/base/result.h"
#include "service/config/config.h"

namespace headrace::service {

struct ConfigKey {
  enum class Kind : std::uint8_t {
    kPath,     // absolute; may be empty when min is 0
    kLibrary,  // absolute, or a name that the loader looks for; may be empty
    kMode,
    kInteger,
    kQuota,  // an integer or "auto", which is kQuotaAuto
    kSwitch,
    kChoice,   // one of `choice`
    kName,     // of a node; may be empty, as the rest
    kListen,   // host:port, "*" and port 0 included; stored with its port
    kAddress,  // host:port; stored with its port
    kPeers,    // name=host:port,...
    kRails,    // eth0,eth1
    kText,
  };
  // A member of an enum type: the names of its values, in their order, and access by the index.
  struct Choice {
    std::span<const std::string_view> names;
    void (*set)(Config& config, std::size_t index);
    std::size_t (*get)(const Config& config);
  };
  using Member =
      std::variant<std::string Config::*, std::uint64_t Config::*, bool Config::*, Choice>;

  std::string_view name;  // in the file; HEADRACE_NAME in the environment, --name as a flag
  Kind kind;
  Member member;
  std::uint64_t min = 0;
  std::uint64_t max = 0;
  std::string_view help;
};

std::span<const ConfigKey> ConfigKeys();
const ConfigKey* FindConfigKey(std::string_view name);

// "HEADRACE_SPIN_US" and "--spin-us" of "spin_us".
std::string EnvironmentName(const ConfigKey& key);
std::string FlagName(const ConfigKey& key);

// A value as a file spells it, with its type.
using ConfigValue = std::variant<std::string, std::int64_t, bool>;

// Checks the value and stores it. The error says what is wrong with it, not where it stands.
Status SetConfigValue(const ConfigKey& key, const ConfigValue& value, Config& config);
// The same for text from a flag or the environment.
Status SetConfigText(const ConfigKey& key, const std::string& text, Config& config);

// What the value may be, for people: "1 to 64", "nvlink or nccl"; empty: any, or the help says it.
std::string AllowedValues(const ConfigKey& key);

// The value as TOML: quoted text, 0o666, 42, true.
std::string PrintConfigValue(const ConfigKey& key, const Config& config);

// Reads the file `path` into `config`, with sources. Errors begin with path:line:column.
Status ReadConfigFile(const std::string& path, Config& config);

}  // namespace headrace::service
