#include "transport/ucx/handles.h"

#include <fmt/format.h>

namespace headrace::transport {

Code CodeOf(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return Code::kOk;
    case UCS_ERR_CANCELED:
      return Code::kCancelled;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return Code::kExhausted;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_INVALID_ADDR:
      return Code::kUnavailable;
    case UCS_ERR_INVALID_PARAM:
      return Code::kInvalidArgument;
    case UCS_ERR_MESSAGE_TRUNCATED:
      return Code::kCorrupt;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
      return Code::kPeerLost;
    default:
      return Code::kInternal;
  }
}

Error UcxError(std::string_view doing, ucs_status_t status) {
  return {CodeOf(status), fmt::format("{}: UCX says \"{}\"", doing, ucs_status_string(status))};
}

}  // namespace headrace::transport
