// One simulated training process: posts its job's program from slots of its memory, looks at its
// completions, and notices when the service writes where it should not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/completion_checker.h"
#include "tests/sim/messages.h"
#include "tests/support/hand_driven_node.h"

namespace headrace::sim {

inline constexpr std::uint32_t kSlots = 16;    // per segment
inline constexpr std::uint64_t kOpenMax = 40;  // fewer than there are error texts in a channel
// Sends and receives that wait for an answer leave room for operations.
inline constexpr std::ptrdiff_t kMessagesOpenMax = 8;

class Rank {
 public:
  // Attaches the rank with two segments; tensor i is slot i of the first, as float32. The checker
  // knows the job as `known_as`, 0: as the node does. The segments are memory of GPU `device`, and
  // a third one holds parts tables; kHost: of the host.
  Rank(support::HandDrivenNode& node, CompletionChecker& checker, const support::JobSpec& job,
       std::uint32_t rank, std::uint64_t seed, JobId known_as = {}, int device = transport::kHost);

  enum class Manner : std::uint8_t { kHonest, kDisagrees, kBadRecord };
  // Posts the next operation of the program; false when there is no room for it now.
  bool Post(Manner manner, std::uint32_t timeout_ms, Dice& dice);
  // Posts a send or receive of any kind; `spoiled`: one that differs from the other side, or cannot
  // be carried out. Nothing happens without another rank, or room. Its ends go to `messages`.
  void PostMessage(Messages& messages, bool spoiled, std::uint32_t timeout_ms, Dice& dice);
  // What the other side of a send or receive that is open would be.
  struct OtherSide {
    bool sends = false;
    std::uint32_t rank = 0;   // who posts it; of a receive from any rank anybody may
    std::uint32_t other = 0;  // whom it names
    std::uint64_t tag = 0;
    std::uint64_t record = 0;  // of this rank, which waits for it
  };
  std::optional<OtherSide> FirstOtherSide() const;
  bool IsOpen(std::uint64_t record) const {
    return std::ranges::find(open_, record, &Open::record) != open_.end();
  }
  // Posts it, if there is room.
  void Answer(Messages& messages, const OtherSide& side, std::uint32_t timeout_ms, Dice& dice);
  // Posts what nobody else does, without waiting for room, and gives up its own books.
  void PostRudely(std::uint64_t count);
  // The rank's GPU comes as far as some or all of the records whose word the service awaits.
  void ReachWords(Dice& dice);
  void ReachAllWords(Dice& dice);
  // Checks every operation that was open. What is wrong, if anything.
  std::optional<std::string> CheckEnded();
  // When everything has ended: whether memory and completions are as they were last seen.
  std::optional<std::string> CheckAtEnd() const;

  // The service has had the time to read everything; `now` is when it did.
  void MarkRead(TimeNs now);
  // The open operation whose time is over, if any.
  std::optional<std::string> Overdue(TimeNs now) const;

  support::ClientEnd& client() { return client_; }
  const support::ClientEnd& client() const { return client_; }
  std::string Name() const;
  std::uint32_t world_size() const { return world_size_; }
  JobId job() const { return job_; }
  std::size_t open() const { return open_.size(); }
  // Operations of the program that it has posted, which are not all of its records.
  std::uint64_t posted() const { return posted_; }
  // How many of those the service has surely read.
  std::size_t OpenAndRead() const;

  bool closed = false;     // its lease has ended
  bool orderly = false;    // ... because it left
  bool garbled = false;    // it wrote garbage into its ring
  bool has_second = true;  // its second segment is still registered
  Values values = Values::kExact;

 private:
  struct Open {
    std::uint64_t sequence = 0;  // of the program
    std::uint64_t record = 0;
    std::optional<std::uint32_t> slot;  // none for a barrier
    std::size_t size = 0;
    std::uint32_t timeout_ms = 0;
    TimeNs read_ns = kNever;
    // The rank's own part, in bytes of the slot, whose reduction goes to `result` there; 0: to
    // where the part is.
    std::size_t result = 0;
    std::size_t part = 0;
    std::vector<std::byte> part_bytes{};
    // Set for a send or receive, which is not one of the program's collectives.
    Messages* messages = nullptr;
    bool sends = false;
    std::uint32_t message = 0;
    Messages::Triple triple{};
  };
  struct Ended {
    std::uint64_t record = 0;
    std::uint64_t word = 0;
  };

  Planned Plan(std::uint64_t sequence) const;
  std::optional<std::uint32_t> TakeSlot(Dice& dice);
  // Has the rank's own part reduced to behind the memory of the operation, where there is room
  // before the table.
  void PutResultElsewhere(const Planned& planned, std::vector<ipc::PartRow>& rows,
                          ipc::Record& record, Open& open) const;
  void PutTable(std::uint32_t slot, const std::vector<ipc::PartRow>& rows,
                ipc::Record& record) const;
  // What the slot would hold had the part been reduced in place; nothing where it was touched.
  std::optional<std::vector<std::byte>> AsInPlace(const Open& open,
                                                  std::vector<std::byte> memory) const;
  std::span<std::byte> Slot(std::uint32_t slot) const;
  std::uint64_t Word(std::uint64_t record) const;
  std::optional<std::string> CheckOperation(const Open& open);
  std::optional<std::string> CheckMessage(const Open& open, std::span<const std::byte> result);
  void PostMessage(Messages& messages, bool sends, std::uint32_t other, std::uint64_t tag,
                   bool spoiled, std::uint32_t timeout_ms, Dice& dice);
  // Memory that nothing has a right to write to now is as this rank left it.
  bool IsUntouched() const;

  support::HandDrivenNode& node_;
  CompletionChecker& checker_;
  std::uint64_t seed_;
  JobId job_;
  bool several_nodes_;
  std::uint32_t world_size_;
  int device_;
  support::ClientEnd& client_;
  // What the stream of the rank's GPU has still to do: the gradient, then the record's word.
  struct StreamWork {
    std::uint64_t record = 0;
    std::span<std::byte> memory;
    std::vector<std::byte> gradient;  // empty: the operation has ended without it
  };
  std::deque<StreamWork> stream_;
  std::uint64_t posted_ = 0;
  std::vector<bool> slot_used_;
  std::vector<std::byte> shadow_;  // what both segments hold, but for slots in use
  std::vector<Open> open_;
  std::vector<Ended> ended_;
};

}  // namespace headrace::sim
