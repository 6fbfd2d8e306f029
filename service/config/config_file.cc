#include <fmt/format.h>
#include <toml++/toml.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ipc/base/file.h"
#include "ipc/base/nearest_name.h"
#include "service/config/config_keys.h"

namespace headrace::service {
namespace {

std::string Place(const std::string& path, const toml::source_position& position) {
  return fmt::format("{}:{}:{}", path, position.line, position.column);
}

Error UnknownKey(const std::string& place, std::string_view name, bool table) {
  std::vector<std::string> names;
  for (const ConfigKey& key : ConfigKeys()) names.emplace_back(key.name);
  const std::string nearest = NearestName(name, names);
  std::string text = fmt::format("{}: unknown {} \"{}\"", place, table ? "table" : "key", name);
  if (table && FindConfigKey(name) != nullptr) {
    text = fmt::format("{}: {} is a single value, not a table", place, name);
  } else if (table) {
    text += ": the keys of this file stand in no table";
  } else if (!nearest.empty()) {
    text += fmt::format(": did you mean \"{}\"?", nearest);
  } else {
    text += fmt::format(": known are {}", fmt::join(names, ", "));
  }
  return Error(Code::kInvalidArgument, std::move(text));
}

Status Apply(const std::string& path, std::string_view name, const toml::source_position& at,
             const toml::node& node, Config& config) {
  const std::string place = Place(path, at);
  const ConfigKey* key = FindConfigKey(name);
  if (key == nullptr || node.is_table()) return UnknownKey(place, name, node.is_table());
  Status status;
  if (const auto* text = node.as_string()) {
    status = SetConfigValue(*key, text->get(), config);
  } else if (const auto* number = node.as_integer()) {
    status = SetConfigValue(*key, number->get(), config);
  } else if (const auto* on = node.as_boolean()) {
    status = SetConfigValue(*key, on->get(), config);
  } else {
    std::ostringstream type;
    type << node.type();
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: {} cannot be of type {}", place, name, type.str()));
  }
  if (!status) return status.error().Within(place);
  config.sources.insert_or_assign(std::string(name), fmt::format("file {}:{}", path, at.line));
  return {};
}

}  // namespace

Status ReadConfigFile(const std::string& path, Config& config) {
  const Result<std::string> text = ReadSmallFile(path, "not a configuration");
  if (!text) return text.error();
  try {
    const toml::table table = toml::parse(*text, path);
    for (const auto& [name, node] : table) {
      if (Status status = Apply(path, name.str(), name.source().begin, node, config); !status) {
        return status;
      }
    }
  } catch (const toml::parse_error& error) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: {}", Place(path, error.source().begin), error.description()));
  }
  return {};
}

}  // namespace headrace::service
