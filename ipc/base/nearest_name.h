// Which word was meant: for "did you mean ...?" in errors about names that people type.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace headrace {

// The candidate nearest to `name` by edit distance, when it is near enough to have been meant;
// empty otherwise.
std::string NearestName(std::string_view name, std::span<const std::string> candidates);

}  // namespace headrace
