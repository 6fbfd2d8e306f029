// The cause of a group's failure. A failure ends everything in its group, so one is kept: the
// first, but a known cause replaces a guess.
//
// Part of Group, on the lane's thread. Recorded when it is found, executed by Group::Step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "transport/exchange/piece_fault.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"

namespace headrace::transport {

class GroupFailure {
 public:
  // `options` outlives it; `lane` is the lane's name.
  GroupFailure(const GroupOptions& options, std::string lane)
      : options_(options), lane_(std::move(lane)) {}

  const std::optional<Error>& error() const { return error_; }
  bool failed() const { return error_.has_value(); }
  // What is noted after it was carried out changes nothing.
  bool carried_out() const { return carried_out_; }
  void SetCarriedOut() { carried_out_ = true; }

  void Set(Code code, std::string cause) { Set(code, std::move(cause), false); }
  void OnLinkFailed(std::uint32_t member, const std::string& cause);
  // A message "to" or "from" the member. Its link's failure, if that is why, says more.
  void OnMessageEndedEarly(std::uint32_t member, const char* direction, Code code);
  // The member does something else than this node.
  void OnMismatch(std::uint32_t member, std::uint64_t position, const std::string& what);
  // A piece of the transfer cannot be summed; its messages came from `senders`.
  void OnFault(const PieceFault& fault, std::span<const std::uint8_t> senders,
               std::uint64_t position, const std::string& transfer);

 private:
  void Set(Code code, std::string cause, bool is_guess);

  const GroupOptions& options_;
  const std::string lane_;
  std::optional<Error> error_;
  bool is_guess_ = false;
  bool carried_out_ = false;
};

}  // namespace headrace::transport
