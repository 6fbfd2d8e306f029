#include "client/lib/loss.h"

#include <fmt/format.h>

namespace headrace::client {

Error StandstillOf(const std::string& service, TimeNs silent_ns) {
  return Error(Code::kUnavailable,
               fmt::format("{} has not answered for {:.1f} s: it is stopped or stuck, headracectl "
                           "doctor tells which; see that it runs and call hr_session_reconnect, or "
                           "open a new session",
                           service, static_cast<double>(silent_ns) / kSecond));
}

Error LossOf(const std::string& service, bool stops) {
  return Error(Code::kUnavailable,
               fmt::format("{} {}: start it again and call hr_session_reconnect, or open a new "
                           "session",
                           service, stops ? "is stopping, as it was asked to" : "went away"));
}

}  // namespace headrace::client
