// Texts for lists of ranks and nodes. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::service {

// "rank 3 is missing" or "ranks 2, 3 are missing". Long lists end after eight with the number of
// others.
std::string MissingRanks(std::span<const std::uint32_t> ranks);
// "node b" or "nodes b, c", shortened in the same way.
std::string NodeList(const std::vector<std::string>& names);

}  // namespace headrace::service
