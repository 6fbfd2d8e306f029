#include "ipc/base/collective.h"

#include <array>

namespace headrace {
namespace {

constexpr std::array<std::string_view, 12> kCollectives = {
    "unknown", "all_reduce", "broadcast", "reduce_scatter", "all_gather", "barrier",
    "reduce",  "send",       "receive",   "gather",         "scatter",    "all_to_all"};
constexpr std::array<std::string_view, 8> kDTypes = {"unknown",  "float32", "float64", "float16",
                                                     "bfloat16", "int32",   "int64",   "uint8"};
constexpr std::array<std::string_view, 6> kReductions = {"unknown", "sum", "average",
                                                         "min",     "max", "product"};

template <std::size_t N, typename E>
std::string_view At(const std::array<std::string_view, N>& names, E value) {
  const auto index = static_cast<std::size_t>(value);
  return names[index < N ? index : 0];
}

}  // namespace

std::string_view Name(Collective kind) { return At(kCollectives, kind); }
std::string_view Name(DType dtype) { return At(kDTypes, dtype); }
std::string_view Name(Reduction reduction) { return At(kReductions, reduction); }

}  // namespace headrace
