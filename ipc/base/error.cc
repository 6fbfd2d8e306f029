#include "ipc/base/error.h"

#include <array>
#include <cerrno>
#include <system_error>

namespace headrace {
namespace {

constexpr std::array<std::string_view, kCodesCount> kCodeNames = {"ok",
                                                                  "invalid argument",
                                                                  "not found",
                                                                  "already exists",
                                                                  "permission denied",
                                                                  "version mismatch",
                                                                  "unavailable",
                                                                  "busy",
                                                                  "timeout",
                                                                  "mismatch",
                                                                  "peer lost",
                                                                  "corrupt",
                                                                  "exhausted",
                                                                  "cancelled",
                                                                  "internal"};

Code CodeOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
      return Code::kNotFound;
    case EEXIST:
    case EADDRINUSE:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
      return Code::kPermissionDenied;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return Code::kUnavailable;
    case EAGAIN:
      return Code::kBusy;
    case ETIMEDOUT:
      return Code::kTimeout;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return Code::kExhausted;
    case EINVAL:
      return Code::kInvalidArgument;
    default:
      return Code::kInternal;
  }
}

}  // namespace

std::string_view CodeName(Code code) {
  const auto index = static_cast<std::size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : std::string_view("unknown");
}

Error Error::Within(std::string_view doing) const {
  return {code_, std::string(doing) + ": " + text_};
}

Error SystemError(std::string_view doing, int error_number) {
  return {CodeOfErrno(error_number),
          std::string(doing) + ": " + std::generic_category().message(error_number)};
}

}  // namespace headrace
