// Which numbers an option takes, in words that people read in its help: CLI11 writes limits of a
// type out with all digits.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace headrace {

// From `least` to `most`; the help says so, or `words` in its place.
template <typename Number>
CLI::Validator Between(Number least, Number most, const std::string& words = "") {
  const std::string range = fmt::format("{} to {}", least, most);
  return {[least, most, range](std::string& text) {
            Number value{};
            const bool is_number = CLI::detail::lexical_cast(text, value);
            if (is_number && value >= least && value <= most) return std::string();
            return fmt::format("\"{}\" is not a number from {}", text, range);
          },
          words.empty() ? range : words};
}

}  // namespace headrace
