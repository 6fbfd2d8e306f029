#include "service/config/invocation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "ipc/base/nearest_name.h"
#include "ipc/board.h"
#include "service/config/config_address.h"
#include "service/config/config_check.h"
#include "service/config/config_keys.h"

namespace headrace::service {
namespace {

constexpr const char* kFooter =
    "Each option can also be set in the configuration file (--config; --print-config shows its\n"
    "form) or in the environment (HEADRACE_SOCKET for --socket). Options override the\n"
    "environment, and the environment overrides the file.\n"
    "Exit codes: 0 stopped on request, 1 failed to start or to run, 2 wrong usage, 3 stopped "
    "because\n"
    "a GPU's context failed: start it again.";

// The command line as it was given, before anything is made of the values.
struct Line {
  explicit Line(std::size_t keys_count) : given(keys_count) {}

  std::string file;
  bool version = false;
  bool check = false;
  bool print = false;
  std::vector<std::vector<std::string>> given;  // by key
};

void AddOptions(CLI::App& app, Line& line) {
  const Config defaults;
  app.set_help_flag("-h,--help", "print this and exit");
  app.add_flag("--version", line.version, "print the version and exit");
  app.add_flag("--check-config", line.check,
               "check the configuration, print what is wrong with it and exit");
  app.add_flag("--print-config", line.print,
               "print the configuration in force as TOML, with the source of each value, and exit");
  app.add_option("--config", line.file, "configuration file, in TOML")->type_name("FILE");
  app.footer(kFooter);
  std::size_t index = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string allowed = AllowedValues(key);
    const std::string help =
        fmt::format("{}{} [{}]", key.help, allowed.empty() ? "" : "; " + allowed,
                    PrintConfigValue(key, defaults));
    std::vector<std::string>& texts = line.given[index++];
    if (key.kind == ConfigKey::Kind::kSwitch) {
      app.add_flag_callback(
          FlagName(key), [&texts] { texts = {"true"}; }, help);
      const std::string off = "--no-" + FlagName(key).substr(2);
      app.add_flag_callback(
          off, [&texts] { texts = {"false"}; }, fmt::format("turn {} off", FlagName(key)));
    } else {
      app.add_option(FlagName(key), texts, help)->expected(1)->type_name("");
    }
  }
}

// CLI11 says which argument it does not know; this adds which one it may have been.
std::string ExplainUnknown(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::vector<std::string> unknown = app.remaining();
  const std::string first =
      unknown.empty() ? "" : unknown.front().substr(0, unknown.front().find('='));
  const std::string nearest = NearestName(first, known);
  std::string text = fmt::format("unknown argument \"{}\"", first);
  text +=
      nearest.empty() ? ": --help lists what is known" : fmt::format(": did you mean {}?", nearest);
  return text;
}

Status ApplyEnvironment(const Environment& environment, Config& config) {
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name = EnvironmentName(key);
    const std::optional<std::string> text = environment(name);
    if (!text) continue;
    if (Status status = SetConfigText(key, *text, config); !status) {
      return status.error().Within("environment " + name);
    }
    config.sources.insert_or_assign(std::string(key.name), "env " + name);
  }
  return {};
}

Status ApplyFlags(const Line& line, Config& config) {
  std::size_t index = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::vector<std::string>& texts = line.given[index++];
    if (texts.empty()) continue;
    if (Status status = SetConfigText(key, texts.back(), config); !status) {
      return status.error().Within("flag " + FlagName(key));
    }
    config.sources.insert_or_assign(std::string(key.name), "flag " + FlagName(key));
  }
  return {};
}

// A host's name may have things in it that a node's name must not.
Result<std::string> NameOfHost() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return SystemError("gethostname", errno);
  std::string text(name.data());
  if (Status status = CheckNodeName(text); !status) {
    return status.error().Within(
        fmt::format("this host is called \"{}\", which cannot name a node: set node_name", text));
  }
  return text;
}

Result<Config> Gather(const Line& line, const Environment& environment) {
  Config config;
  if (!line.file.empty()) {
    if (Status status = ReadConfigFile(line.file, config); !status) return status.error();
  }
  if (Status status = ApplyEnvironment(environment, config); !status) return status.error();
  if (Status status = ApplyFlags(line, config); !status) return status.error();
  if (config.node_name.empty()) {
    Result<std::string> name = NameOfHost();
    if (!name) return name.error();
    config.node_name = std::move(name).value();
  }
  // Two services must not write one board: who gives a socket of its own means a board of its own.
  if (config.sources.contains("socket") && !config.sources.contains("board")) {
    config.board_path = ipc::BoardPathBeside(config.socket_path);
    config.sources.insert_or_assign("board", "beside the socket");
  }
  // The peers of a static list need a place to meet on which all of them agree.
  const Result<std::vector<ConfiguredPeer>> peers = ParsePeers(config.peers);
  if (peers && !peers->empty() && config.rendezvous.empty() && config.role == Role::kNode) {
    config.rendezvous = peers->front().address.Text();
  }
  if (Status status = CheckConfig(config); !status) return status.error();
  return config;
}

Invocation PrintAndExit(std::string text) {
  return {.action = Invocation::Action::kPrint, .text = std::move(text), .config = {}};
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Result<Invocation> ReadInvocation(std::span<const char* const> arguments,
                                  const Environment& environment) {
  CLI::App app("The Headrace service: carries the gradients of this machine's training jobs.",
               "headraced");
  Line line(ConfigKeys().size());
  AddOptions(app, line);
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::CallForHelp&) {
    return PrintAndExit(app.help());
  } catch (const CLI::ExtrasError&) {
    return Error(Code::kInvalidArgument, ExplainUnknown(app));
  } catch (const CLI::ParseError& error) {
    return Error(Code::kInvalidArgument, error.what());
  }
  if (line.version) return PrintAndExit(fmt::format("headraced {}\n", Version()));
  Result<Config> config = Gather(line, environment);
  if (!config) return config.error();
  if (line.print) return PrintAndExit(PrintConfig(*config));
  return Invocation{.action = line.check ? Invocation::Action::kCheck : Invocation::Action::kRun,
                    .text = "",
                    .config = std::move(config).value()};
}

std::string PrintConfig(const Config& config) {
  std::vector<std::string> settings;
  std::size_t width = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    settings.push_back(fmt::format("{} = {}", key.name, PrintConfigValue(key, config)));
    width = std::max(width, settings.back().size());
  }
  std::string text;
  std::size_t index = 0;
  for (const ConfigKey& key : ConfigKeys()) {
    const auto source = config.sources.find(key.name);
    text += fmt::format("{:<{}}  # {}\n", settings[index++], width,
                        source == config.sources.end() ? "default" : source->second);
  }
  return text;
}

std::vector<std::string> ChangedKeys(const Config& before, const Config& after) {
  std::vector<std::string> changed;
  for (const ConfigKey& key : ConfigKeys()) {
    if (PrintConfigValue(key, before) != PrintConfigValue(key, after)) {
      changed.emplace_back(key.name);
    }
  }
  return changed;
}

std::string_view Version() { return HEADRACE_VERSION; }

}  // namespace headrace::service
