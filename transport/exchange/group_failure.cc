#include "transport/exchange/group_failure.h"

#include <utility>

namespace headrace::transport {

void GroupFailure::Set(Code code, std::string cause, bool is_guess) {
  if (carried_out_ || (error_ && (!is_guess_ || is_guess))) return;
  error_ = Error(code, std::move(cause));
  is_guess_ = is_guess;
}

void GroupFailure::OnLinkFailed(std::uint32_t member, const std::string& cause) {
  Set(Code::kPeerLost,
      "node " + options_.members[member].name + ": link over " + lane_ + " failed: " + cause);
}

void GroupFailure::OnMessageEndedEarly(std::uint32_t member, const char* direction, Code code) {
  Set(Code::kPeerLost,
      "node " + options_.members[member].name + ": a message " + direction + " it over " + lane_ +
          " ended early: " + std::string(CodeName(code)),
      true);
}

void GroupFailure::OnMismatch(std::uint32_t member, std::uint64_t position,
                              const std::string& what) {
  Set(Code::kMismatch, "node " + options_.members[member].name + " " + what + " (position " +
                           std::to_string(position) + ")");
}

void GroupFailure::OnFault(const PieceFault& fault, std::span<const std::uint8_t> senders,
                           std::uint64_t position, const std::string& transfer) {
  if (!fault.message) {
    return Set(fault.code, "node " + options_.members[options_.self].name + ": " + fault.what);
  }
  OnMismatch(senders[*fault.message], position, "sends of " + transfer + " " + fault.what);
}

}  // namespace headrace::transport
