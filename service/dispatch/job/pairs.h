// The sends and receives of one job. A pair is a send and the receive that it is matched with, or
// the one of the two that was posted and still waits for the other.
//
// They are matched by (source, target, tag), each triple in the order of its posts. A receive from
// any rank takes the send to it that was posted first under its tag. So sends and receives of one
// triple never wait at the same time.
//
// A pair that ends with an error before its other side was posted may stay as a tombstone, from
// which that side gets the same cause when it is posted: a receive must not get the message after
// the one that was lost.
//
// Ranks of other nodes take part by notices (session/send_notices.h): their receives are matched
// on their node, and the pair here is the send alone, until it may go; their sends are announced,
// and open a pair here that nobody of this node has posted, or complete one.
//
// A short message travels with its announcement, and is copied to the receiver's memory when a
// receive takes it. The send ends when it has been announced; its place and its bytes are free when
// the receiver's node reports that they were received.
//
// A rank has at most kOperationsMax pairs that it opened, tombstones included. Memory for more of
// them is allocated when so many are open for the first time, and kept.
//
// Plain data and rules, inside Job; dispatch's thread.
#pragma once

#include <array>
#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/base/clock.h"
#include "service/dispatch/job/operation.h"
#include "service/session/send_notices.h"
#include "transport/network.h"
#include "transport/transport.h"

namespace headrace::service {

struct ByNameTag;
using NameHook = boost::intrusive::set_base_hook<boost::intrusive::tag<ByNameTag>>;

struct Pair : boost::intrusive::set_base_hook<>, NameHook {
  static constexpr std::size_t kSource = 0;
  static constexpr std::size_t kTarget = 1;

  Operation operation;
  std::uint32_t opened_by = 0;  // rank
  // The memory of each side, once it was posted.
  std::array<std::byte*, 2> memory{};
  std::array<std::int8_t, 2> devices{};
  std::array<std::uint64_t, 2> records{};
  Away away = Away::kNo;
  std::uint32_t node = 0;    // of the other side, where it is away
  bool announced = false;    // of one that goes: the other node knows of it
  bool sent = false;         // likewise: it has ended, and its message was not received yet
  bool other_knows = false;  // that it has ended early, or said so itself
  // For a pair whose send is on another node.
  std::uint64_t send = 0;             // what its node calls it
  bool send_ready = false;            // the sender's memory is
  bool withdrawn = false;             // its node has reported that
  std::uint32_t blocks_released = 0;  // that may go, by notices sent to that node
  std::uint64_t standing_ahead =
      0;  // of those after, bit i for `blocks_released` + i: on their lanes
  // Bytes that travel with the announcement; and, of one that comes, the bytes until they are where
  // they belong.
  std::size_t data_size = 0;
  std::vector<std::byte> data;

  // Whether it waits for its other side, as what was posted or as a tombstone.
  bool waits() const { return boost::intrusive::set_base_hook<>::is_linked(); }
  // What other nodes call a block of it.
  std::uint64_t send_name() const { return away == Away::kComes ? send : operation.spec.sequence; }
  // Matched, nothing on the other node holds it back.
  bool MayBegin() const {
    return !waits() && (away != Away::kComes || send_ready) &&
           (away != Away::kGoes || operation.blocks_allowed > 0);
  }
  std::size_t SideOf(std::uint32_t rank) const {
    return rank == operation.spec.target ? kTarget : kSource;
  }
};

class Pairs {
 public:
  explicit Pairs(std::uint32_t world_size)
      : opened_count_(world_size), sent_count_(world_size), failed_count_(world_size) {}

  // The pair that a post of that kind completes; null when it opens one. Of a receive from any rank
  // too: the answer says which.
  Pair* Find(Collective kind, const PairSides& sides);
  // Whether the rank may open another one.
  bool HasRoom(std::uint32_t rank) const;
  // A new pair, opened by that rank's post of that kind, which waits for its other side. Its
  // operation is gathering and has its number.
  Pair& Open(Collective kind, const PairSides& sides, std::uint32_t rank);
  // Its other side has been posted: Find does not return it any more.
  void Match(Pair& pair, std::uint32_t source);
  // From now on it is known by the name that the send has on its node, which no other pair has.
  void Name(Pair& pair, std::uint32_t node, std::uint64_t send);
  Pair* FindNamed(std::uint32_t node, std::uint64_t send);
  // The bytes of its message travel with its announcement from now on; not any more.
  void HoldData(Pair& pair, std::size_t size);
  void DropData(Pair& pair);
  // The send has ended, and its bytes are on their way: keeps its place until they were received.
  void KeepSent(Pair& pair);
  // Whether another send of the rank may end before its message was received.
  bool MayKeepSent(std::uint32_t rank) const {
    return sent_count_[rank] < kSentMax && opened_count_[rank] + failed_count_[rank] <= kSureOfRoom;
  }
  // Messages whose sends have ended and that were not received, as far as is known here.
  std::size_t sent() const { return sent_; }
  template <typename Visit>
  void ForEachSent(Visit visit) {
    for (std::size_t place = 0; sent_ > 0 && place < capacity(); ++place) {
      if (pair(place).sent) visit(pair(place));
    }
  }
  // A send of the rank has failed, which leaves its receiver's node a tombstone.
  void CountFailed(std::uint32_t rank) {
    if (failed_count_[rank] < kOperationsMax) ++failed_count_[rank];
  }
  // It has ended; frees its place.
  void Free(Pair& pair);

  // The pair in the place that `sequence` names; it may be another one by now.
  Pair& at(std::uint64_t sequence) { return pair(PairPlace(sequence)); }
  const Pair& at(std::uint64_t sequence) const { return pair(PairPlace(sequence)); }
  Pair& pair(std::size_t place) { return (*slabs_[place / kSlab])[place % kSlab]; }
  const Pair& pair(std::size_t place) const { return (*slabs_[place / kSlab])[place % kSlab]; }
  // Those that wait for their other side, as what was posted or as tombstones.
  std::size_t waiting() const { return waiting_.size(); }
  // Places that there is memory for.
  std::size_t capacity() const { return slabs_.size() * kSlab; }

  // What is to be sent, and to which node; dispatch sends it.
  struct Notice {
    std::uint32_t node = 0;
    SendNotice notice;
  };
  std::vector<Notice> notices;
  // What other nodes sent before this one knew that the job had formed.
  std::vector<SendNotices> early;
  std::size_t early_count = 0;  // notices
  // Bytes of messages that travel with their announcements and were not received, by the other
  // node: of sends to it, and of sends of it.
  std::array<std::size_t, transport::kNodesMax> data_going{};
  std::array<std::size_t, transport::kNodesMax> data_coming{};
  // When a block of a pair began last.
  TimeNs moved_ns = -kSecond;

 private:
  static constexpr std::size_t kSlab = 64;
  // Sends of a rank that have ended and were not received: they count among the pairs that it
  // opened, which leaves it the others.
  static constexpr std::uint32_t kSentMax = kOperationsMax / 4;
  // The receiver's node counts pairs of a rank a little longer than the rank's own node does, and
  // tombstones until they are received. With fewer than this it has room for another one.
  static constexpr std::uint32_t kSureOfRoom = kOperationsMax / 2;
  static constexpr std::size_t kPlacesMax = transport::kMembersMax * kOperationsMax;
  static_assert(kPlacesMax == std::size_t{1} << kPairPlaceBits);
  static_assert(kPairedSequence == kSendNamesBegin && kPlannedSequence == kSendNamesEnd);

  struct Key {
    std::uint32_t target = 0;
    std::uint64_t tag = 0;
    std::uint32_t source = 0;
    std::uint64_t sequence = 0;

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct KeyOf {
    using type = Key;
    type operator()(const Pair& pair) const {
      const OperationSpec& spec = pair.operation.spec;
      return {spec.target, spec.tag, spec.source, spec.sequence};
    }
  };

  struct SendName {
    std::uint32_t node = 0;
    std::uint64_t send = 0;

    friend auto operator<=>(const SendName&, const SendName&) = default;
  };
  struct NameOf {
    using type = SendName;
    type operator()(const Pair& pair) const { return {pair.node, pair.send}; }
  };

  // The first of the triple that waits as that kind; null when there is none.
  Pair* First(Collective kind, const PairSides& sides);
  void Grow();

  std::uint64_t opened_ = 0;
  std::vector<std::unique_ptr<std::array<Pair, kSlab>>> slabs_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> opened_count_;  // by rank: the pairs that it opened and that are there
  std::vector<std::uint32_t> sent_count_;    // of them, those that are `sent`
  std::vector<std::uint32_t> failed_count_;  // by rank: sends that have failed, ever
  std::size_t sent_ = 0;
  boost::intrusive::set<Pair, boost::intrusive::key_of_value<KeyOf>> waiting_;  // after the slabs
  boost::intrusive::set<Pair, boost::intrusive::base_hook<NameHook>,
                        boost::intrusive::key_of_value<NameOf>>
      named_;
};

}  // namespace headrace::service
