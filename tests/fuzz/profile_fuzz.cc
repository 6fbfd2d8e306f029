// Fuzz target: profile files are text from strangers. Whatever it is, the reader answers with a
// profile that checks and reads back as itself, or with an error that names a line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/base/check.h"
#include "ipc/profile.h"
#include "tests/support/profile_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const auto profile = headrace::plan::ParseProfile(text);
  if (!profile) {
    HR_CHECK(profile.error().text().starts_with("profile: line "), profile.error().text());
    return 0;
  }
  HR_CHECK(headrace::plan::CheckProfile(*profile).ok(), size);
  const auto again = headrace::plan::ParseProfile(headrace::plan::ProfileJson(*profile));
  HR_CHECK(again.ok(), again.ok() ? "" : again.error().text());
  HR_CHECK(again->tensors == profile->tensors, size);
  return 0;
}
