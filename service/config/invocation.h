// From the command line, the environment and the file that they name to a Config, and back to text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"
#include "service/config/config.h"

namespace headrace::service {

// What the command line asks for.
struct Invocation {
  enum class Action : std::uint8_t {
    kRun,    // start the service with `config`
    kPrint,  // print `text` and exit 0: help, version, configuration
    kCheck,  // say whether the service could start with `config`, and exit
  };
  Action action = Action::kRun;
  std::string text;
  Config config;
};

// Looks one environment variable up; nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// The environment of this process.
Environment ProcessEnvironment();

// Reads the command line (arguments[0] is the program), the environment and the file they name.
// Errors are usage errors: they name the flag, the variable or file:line:column, what was given,
// what is allowed and, for a name nobody knows, the nearest one that is known.
Result<Invocation> ReadInvocation(std::span<const char* const> arguments,
                                  const Environment& environment);

// The whole configuration as TOML, one key a line with its source as a comment; --config reads it
// back.
std::string PrintConfig(const Config& config);

// Names of the keys whose values differ.
std::vector<std::string> ChangedKeys(const Config& before, const Config& after);

// "0.1.0".
std::string_view Version();

}  // namespace headrace::service
