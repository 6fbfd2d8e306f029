// A board written by hand, with something in every table that metrics and the status page read.
#pragma once

#include <memory>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/board.h"

namespace headrace::service {

inline constexpr TimeNs kNow = 5000 * kSecond;
// A label must not end at its quote, and a page must not run it.
inline constexpr const char* kNastyJob = "a\\b\"c</script><script>alert(1)</script>";

// The jobs "bert" (7), which trains by a plan; kNastyJob (8), which has failed; and of "gone" the
// old one (5), whose rows stand there still, and the new one (9).
std::unique_ptr<ipc::BoardLayout> MakeBoard();

// Compares with golden/NAME; HEADRACE_GOLDEN_UPDATE=1 writes it instead.
void ExpectGolden(const std::string& name, const std::string& text);

}  // namespace headrace::service
