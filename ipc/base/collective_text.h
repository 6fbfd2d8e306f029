// Error texts for numbers from outside that name no collective, element type or reduction. Each has
// the number and all that are known. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

// "unknown dtype 9 (known: float32, float64, ...)".
std::string UnknownDTypeText(std::int64_t number);
std::string UnknownReductionText(std::int64_t number);
// For a record's kind, so that sends and receives are among those known.
std::string UnknownKindText(std::int64_t number);

}  // namespace headrace
