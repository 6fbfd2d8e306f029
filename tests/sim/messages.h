// What the ranks of simulated jobs sent and received: finds the message that came twice, to the
// wrong rank, before one that was sent earlier, or with other bytes; and the one that was lost
// although its send had ended.
//
// A message has its number in every element, so that whoever receives says which one it was.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "ipc/base/ids.h"
#include "ipc/completion.h"
#include "ipc/records.h"

namespace headrace::sim {

inline constexpr std::uint64_t kTagsCount = 3;
// Elements of a message under a tag, of kInt32.
constexpr std::uint64_t MessageCount(std::uint64_t tag) { return 1 + 150 * tag; }

class Messages {
 public:
  // What is promised of both sides of one message. Between nodes each ends for itself: at the
  // moment of a fault one may have ended well and the other not.
  enum class Ends : std::uint8_t { kTogether, kEachForItself };
  explicit Messages(Ends ends = Ends::kTogether) : ends_(ends) {}

  struct Triple {
    JobId job;
    std::uint32_t source = 0;
    std::uint32_t target = 0;
    std::uint64_t tag = 0;

    friend auto operator<=>(const Triple&, const Triple&) = default;
  };

  // A message that is sent now. Its number, of which it is filled.
  std::uint32_t Send(const Triple& triple, std::span<std::byte> memory);
  // Each answers what is wrong, if anything.
  std::optional<std::string> SendEnded(std::uint32_t number, const ipc::Outcome& outcome);
  // `expected` as the record said, perhaps from any rank; `source` as the completion says. Receives
  // are matched in the order of their records, and may end in another.
  std::optional<std::string> ReceiveEnded(const Triple& expected, const ipc::Outcome& outcome,
                                          std::uint32_t source, std::uint64_t record,
                                          std::span<const std::byte> memory);
  // Those whose sends have ended well, and that nobody has received yet.
  std::vector<Triple> Unreceived() const;
  // When all have ended and all who received were asked: whether any was lost.
  std::optional<std::string> Lost() const;

  std::uint64_t received() const { return received_; }
  std::uint64_t failed() const { return failed_; }

 private:
  struct Message {
    Triple triple;
    bool received = false;
    std::optional<bool> ok;  // of its send, once that has ended
  };
  static std::int32_t ElementOf(std::uint32_t number, std::size_t index);
  std::optional<std::string> Failed(const std::string& what, const ipc::Outcome& outcome);

  Ends ends_;
  std::vector<Message> messages_;  // by number
  // Numbers that were received, by the record of the receive.
  std::map<Triple, std::map<std::uint64_t, std::uint32_t>> taken_;
  std::uint64_t received_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace headrace::sim
