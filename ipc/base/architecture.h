// Who sums the gradients of a job of several nodes. Clients, the configuration and peers say it by
// name; empty means that the job's leader decides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

enum class Architecture : std::uint8_t {
  kAllReduce,        // the nodes of the job
  kParameterServer,  // services with the role of a server
};
inline constexpr std::array<std::string_view, 2> kArchitectureNames = {"all-reduce",
                                                                       "parameter-server"};

constexpr std::string_view Name(Architecture architecture) {
  return kArchitectureNames[static_cast<std::size_t>(architecture)];
}
// Empty when none is named.
constexpr std::string_view Name(std::optional<Architecture> architecture) {
  return architecture ? Name(*architecture) : std::string_view();
}

constexpr std::optional<Architecture> ArchitectureNamed(std::string_view name) {
  for (std::size_t index = 0; index < kArchitectureNames.size(); ++index) {
    if (kArchitectureNames[index] == name) return static_cast<Architecture>(index);
  }
  return std::nullopt;
}

}  // namespace headrace
