// Fuzz target: plans come from other nodes. A text is refused with the number of a line, or it is
// the canonical form of the plan that it gives.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/base/check.h"
#include "service/plan/canonical.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const auto plan = headrace::plan::ParseCanonical(text);
  if (plan) {
    HR_CHECK(headrace::plan::Canonical(*plan) == text, size);
  } else {
    HR_CHECK(plan.error().text().starts_with("plan: line "), plan.error().text());
  }
  return 0;
}
