// An error, for the caller and for the person who reads it.
//
// The code says what the caller may do; the text is the cause, written by the first function that
// knew it ("open /run/headrace/board: Permission denied"). Callers only prepend what they were
// doing, and the error is logged once, where it stops. Codes are part of the protocol and of the
// C ABI: a number never changes its meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,   // the call or message is wrong: fix it
  kNotFound = 2,          // no such job, tensor, segment, file
  kAlreadyExists = 3,     // rank, socket or name is taken
  kPermissionDenied = 4,  // belongs to another uid
  kVersionMismatch = 5,   // the two sides speak different protocol versions
  kUnavailable = 6,       // the service or peer is absent or going away: start it, try later
  kBusy = 7,              // back-pressure: try again after a completion
  kTimeout = 8,           // the operation outlived its time
  kMismatch = 9,          // ranks posted different operations
  kPeerLost = 10,         // a rank or node this operation needs is gone
  kCorrupt = 11,          // bytes that cannot have been written by an honest peer
  kExhausted = 12,        // a limit of the service or the machine was reached
  kCancelled = 13,        // someone ended it on purpose
  kInternal = 14,         // a bug of ours or an unexpected answer of the system
};
inline constexpr int kCodesCount = 15;

// "peer lost", for tables and logs. Unknown numbers (from another version) give "unknown".
std::string_view CodeName(Code code);

class [[nodiscard]] Error {
 public:
  Error(Code code, std::string cause) : code_(code), text_(std::move(cause)) {}

  Code code() const { return code_; }
  const std::string& text() const { return text_; }

  // The same error with what the caller was doing in front: "attach job a: <cause>".
  Error Within(std::string_view doing) const;

 private:
  Code code_;
  std::string text_;
};

// From errno right after a failed system call: "doing: strerror". The code follows the errno.
Error SystemError(std::string_view doing, int error_number);

}  // namespace headrace
