// Profiles as files, for tests that write them: the programs only read them.
#pragma once

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "ipc/profile.h"

namespace headrace::plan {

// One tensor a line; numbers in the shortest form that reads back as the same.
inline std::string ProfileJson(const Profile& profile) {
  const auto quoted = [](std::string_view text) { return nlohmann::json(text).dump(); };
  const auto number = [](double value) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return std::string(digits.data(), end);
  };
  std::string text = R"({"format": "headrace-profile/1", "model": )" + quoted(profile.model) +
                     R"(, "dtype": )" + quoted(Name(profile.dtype)) + R"(, "tensors": [)";
  for (const Tensor& tensor : profile.tensors) {
    text += (&tensor == &profile.tensors.front() ? "\n" : ",\n") + std::string(R"({"name": )") +
            quoted(tensor.name) + R"(, "elements": )" + std::to_string(tensor.elements) +
            R"(, "backward_s": )" + number(tensor.backward_s) + R"(, "forward_s": )" +
            number(tensor.forward_s) + "}";
  }
  return text + "\n]}\n";
}

}  // namespace headrace::plan
