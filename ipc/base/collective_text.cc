#include "ipc/base/collective_text.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "ipc/base/collective.h"

namespace headrace {
namespace {

template <typename E>
std::string UnknownText(std::string_view what, std::int64_t number, bool (*is_known)(unsigned)) {
  std::vector<std::string_view> known;
  for (unsigned value = 0; value <= UINT8_MAX; ++value) {
    if (is_known(value)) known.push_back(Name(static_cast<E>(value)));
  }
  return fmt::format("unknown {} {} (known: {})", what, number, fmt::join(known, ", "));
}

}  // namespace

std::string UnknownDTypeText(std::int64_t number) {
  return UnknownText<DType>(
      "dtype", number, [](unsigned value) { return IsDType(static_cast<std::uint8_t>(value)); });
}

std::string UnknownReductionText(std::int64_t number) {
  return UnknownText<Reduction>("reduction", number, [](unsigned value) {
    return IsReduction(static_cast<std::uint8_t>(value));
  });
}

std::string UnknownKindText(std::int64_t number) {
  return UnknownText<Collective>("operation kind", number, [](unsigned value) {
    const auto kind = static_cast<std::uint8_t>(value);
    return IsCollective(kind) || IsSendOrReceive(kind);
  });
}

}  // namespace headrace
