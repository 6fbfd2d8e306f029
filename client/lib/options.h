// The options of a session and their sources in the environment.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "client/include/headrace/headrace.h"
#include "ipc/base/result.h"

namespace headrace::client {

// The value of an environment variable, or null. The real one is getenv.
using Environment = std::function<const char*(const char* name)>;

// Defaults, then the environment. The error names every variable that does not hold what it
// should; those fields keep their defaults.
Status FillOptions(const Environment& environment, hr_options& options);

// hr_options before it had a rendezvous, before it had reconnect_s, before it had
// shrink_min_world, which has come where padding was, before it had role, which has too, and
// sends_class, and before it had slow_bound_s.
inline constexpr std::size_t kFirstOptionsSize = offsetof(hr_options, rendezvous);
inline constexpr std::size_t kSecondOptionsSize = offsetof(hr_options, reconnect_s);
inline constexpr std::size_t kThirdOptionsSize = offsetof(hr_options, shrink_grace_ms);
inline constexpr std::size_t kFourthOptionsSize = offsetof(hr_options, sends_class);
inline constexpr std::size_t kFifthOptionsSize = offsetof(hr_options, slow_bound_s);
static_assert(kFirstOptionsSize == 264 && kSecondOptionsSize == 552 && kThirdOptionsSize == 560 &&
              kFourthOptionsSize == 568 && kFifthOptionsSize == 576 && sizeof(hr_options) == 584);

// The first `size` bytes of filled options, for a caller that was compiled with so many; `options`
// is untouched when the library knows no such structure.
Status FillSizedOptions(const Environment& environment, std::size_t size, hr_options& options);

// Where the options' rendezvous is from, as people spell it: a variable that has this value, else
// an argument; empty where there is none.
std::string RendezvousSource(const Environment& environment, const hr_options& options);

// What was `given` by a caller that may know only the first part; the rest is the environment's.
Result<hr_options> WholeOptions(const Environment& environment, const hr_options& given);

// Defaults, then the environment; `size` is that of the structure which the caller knows.
Status FillLayoutOptions(const Environment& environment, std::size_t size,
                         hr_layout_options& options);

// What hr_open needs before it asks the service; each error names the field and how to give it.
Status CheckOptions(const hr_options& options);

}  // namespace headrace::client
