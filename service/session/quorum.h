// The remaining members of a job, and those that join it: the report of a rank that lost its job,
// before it attaches again, and the decision for all of them. Plain values; nothing here trusts a
// client or a peer.
//
// A *member* is a process of the job, numbered once and for all: by its rank in the first epoch, or
// by the decision that took it in. Ranks are dense and change with each decision; the rank of a
// member is its place in the membership. So a member number identifies a rank even if the rank has
// missed earlier decisions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/base/steering.h"

namespace headrace::service {

// For how long a member of which nothing is known is waited for, at most.
inline constexpr std::uint32_t kQuorumGraceMaxMs = 3'600'000;
// One that is attached in the epoch to come waits there for the others for some time before it asks
// again (client/lib/session_reconnect.cc): it is waited for longer than that.
inline constexpr std::uint32_t kQuorumStallLeastMs = 15'000;
inline constexpr std::uint32_t kQuorumStallMaxMs = 86'400'000;
static_assert(kQuorumStallMaxMs == kSlowBoundMaxS * 1000);

struct Membership {
  std::uint32_t generation = 0;        // of the decision; 0: the job as it began
  std::vector<std::uint32_t> members;  // growing

  std::optional<std::uint32_t> RankOf(std::uint32_t member) const;
  friend bool operator==(const Membership&, const Membership&) = default;
};

// 1 to kMembersMax members in growing order, each below kEpochMax.
Status CheckMembership(const Membership& membership);

// The hash of members by rank; 0 for none. Ranks of two decisions are never one job.
std::uint64_t HashOfMembers(const std::vector<std::uint32_t>& members);

// Whether `one` is to be used where both are said of a job. A total order, so that it does not
// matter who says what first: the later decision; of two with one number, that with more members.
bool IsNewer(const Membership& one, const Membership& other);

enum class MemberState : std::uint8_t {
  kAsks = 1,      // it waits for the decision
  kAttached = 2,  // it still has a session: it has not noticed the loss yet
  kLost = 3,      // its process is gone, it left, or it was evicted
  kJoins = 4,     // no member yet: an applicant, that is to be one
  kSpare = 5,     // likewise, in the place of one that is lost
};
inline constexpr std::uint8_t kMemberStatesCount = 5;
// By which a node numbers its applicants from here on; no member has such a number.
inline constexpr std::uint32_t kApplicantsFrom = std::uint32_t{1} << 31;

inline bool IsApplicant(MemberState state) { return state >= MemberState::kJoins; }

// How many applicants wait for a running job, on all of its nodes.
struct WaitingApplicants {
  static constexpr std::uint32_t kCountMax = 1'000'000;  // more are said to be so many

  std::uint32_t joiners = 0;
  std::uint32_t spares = 0;

  // As a steering's value.
  std::uint64_t Value() const { return std::uint64_t{spares} << 32 | joiners; }
  static WaitingApplicants Of(std::uint64_t value) {
    return {.joiners = static_cast<std::uint32_t>(value),
            .spares = static_cast<std::uint32_t>(value >> 32)};
  }
  friend bool operator==(const WaitingApplicants&, const WaitingApplicants&) = default;
};

// What a process is to a job.
enum class MemberRole : std::uint8_t { kMember = 0, kJoins = 1, kSpare = 2 };
inline constexpr std::uint8_t kMemberRolesCount = 3;

struct MemberReport {
  std::uint32_t member = 0;
  MemberState state = MemberState::kAsks;
  std::string cause{};  // of a lost one: "pid 12 on node b exited or was killed"

  friend bool operator==(const MemberReport&, const MemberReport&) = default;
};

struct LostMember {
  std::uint32_t member = 0;
  std::string cause;

  friend bool operator==(const LostMember&, const LostMember&) = default;
};

// With how many ranks the job may go on, and how long those are waited for of which nothing is
// known, and those that are attached and do not ask. Of ranks that differ, the greater counts.
struct QuorumRules {
  std::uint32_t min_world = 1;
  std::uint32_t grace_ms = 0;
  std::uint32_t stall_ms = 0;  // 0: without limit
};

// What all that are left are told: their ranks are their places in the membership, and they attach
// as ranks that were in `epoch`.
struct Admission {
  std::uint32_t applicant = 0;  // the node's number
  std::uint32_t member = 0;     // that it is from now on

  friend bool operator==(const Admission&, const Admission&) = default;
};

struct Quorum {
  Membership membership;
  std::uint32_t epoch = 0;
  std::vector<LostMember> lost;
  std::vector<Admission> admitted{};  // of the node that is told
  std::uint32_t own = 0;              // the member that is told
  std::string rendezvous{};           // where they attach, as their own service calls it

  // Members that a decision takes in have numbers from here on: none that was one before.
  static std::uint32_t FirstNew(std::uint32_t generation);
};

}  // namespace headrace::service
