// How lists of ranks and nodes are named to people.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::service {

// "rank 3 is missing" or "ranks 2, 3 are missing"; of many the first eight and how many more.
std::string MissingRanks(std::span<const std::uint32_t> ranks);
// "node b" or "nodes b, c", shortened alike.
std::string NodeList(const std::vector<std::string>& names);

}  // namespace headrace::service
