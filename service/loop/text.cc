#include "service/loop/text.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "ipc/base/foreign_text.h"

namespace headrace::service {

std::string CauseOf(const kj::Exception& exception) {
  // However the end of the other side shows itself: nothing to read, reset, no one to write to.
  if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
    const std::string cause = CauseInForeignText(exception.getDescription().cStr());
    // Not reached at all, other than ended.
    for (const int number : {ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENETDOWN}) {
      if (cause == std::strerror(number)) return cause;
    }
    return "its service exited, was killed or closed it";
  }
  return CauseInForeignText(exception.getDescription().cStr());
}

void Refuse(schema::Refusal::Builder refusal, const Error& error) {
  refusal.setCode(static_cast<std::uint8_t>(error.code()));
  refusal.setText(error.text());
}

}  // namespace headrace::service
