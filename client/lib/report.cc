#include "client/lib/report.h"

#include <algorithm>
#include <cstring>

namespace headrace::client {
namespace {

template <typename C, typename Cpp>
constexpr bool Same(C c, Cpp cpp) {
  return static_cast<int>(c) == static_cast<int>(cpp);
}

// The C header repeats the numbers of the protocol; a difference must not compile.
static_assert(Same(HR_OK, Code::kOk));
static_assert(Same(HR_INVALID_ARGUMENT, Code::kInvalidArgument));
static_assert(Same(HR_NOT_FOUND, Code::kNotFound));
static_assert(Same(HR_ALREADY_EXISTS, Code::kAlreadyExists));
static_assert(Same(HR_PERMISSION_DENIED, Code::kPermissionDenied));
static_assert(Same(HR_VERSION_MISMATCH, Code::kVersionMismatch));
static_assert(Same(HR_UNAVAILABLE, Code::kUnavailable));
static_assert(Same(HR_BUSY, Code::kBusy));
static_assert(Same(HR_TIMEOUT, Code::kTimeout));
static_assert(Same(HR_MISMATCH, Code::kMismatch));
static_assert(Same(HR_PEER_LOST, Code::kPeerLost));
static_assert(Same(HR_CORRUPT, Code::kCorrupt));
static_assert(Same(HR_EXHAUSTED, Code::kExhausted));
static_assert(Same(HR_CANCELLED, Code::kCancelled));
static_assert(Same(HR_INTERNAL, Code::kInternal) && HR_INTERNAL + 1 == kCodesCount);

}  // namespace

hr_status Report(const Status& status, hr_error* error) {
  if (status.ok()) return HR_OK;
  const auto code = static_cast<hr_status>(status.code());
  if (error == nullptr) return code;
  const std::string& text = status.error().text();
  const std::size_t length = std::min(text.size(), sizeof error->text - 1);
  error->code = code;
  std::memcpy(error->text, text.data(), length);
  error->text[length] = '\0';
  return code;
}

}  // namespace headrace::client
