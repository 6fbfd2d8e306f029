// One rank of a job in one epoch, as its process sees it: posts collectives and gradients, looks at
// what becomes of them, and has the checker compare results with those of the epoch's other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "service/session/layout.h"
#include "service/session/session.h"
#include "tests/sim/completion_checker.h"
#include "tests/support/hand_driven_node.h"
#include "transport/network.h"

namespace headrace::sim {

class EpochChecker;

class ElasticSession {
 public:
  struct Who {
    std::size_t node = 0;
    std::uint64_t instance = 0;  // of its service
    std::uint32_t process = 0;
    service::SessionIdentity identity{};
    std::vector<std::uint32_t> members{};             // by rank
    std::optional<transport::Algorithm> algorithm{};  // of the leader; none: a job of one node
  };
  // Attaches the rank with a segment for collectives and one for gradients.
  ElasticSession(support::HandDrivenNode& node, const support::JobSpec& job, Who who,
                 const service::Layout& layout);

  const Who& who() const { return who_; }
  support::ClientEnd& client() { return client_; }
  std::uint32_t rank() const { return who_.identity.rank; }
  std::uint32_t world_size() const { return who_.identity.world_size; }
  std::string Name() const;

  static constexpr TensorId kFirstTensor{1};  // gradients have this number and the next ones

  // ---- posts ----
  // Room for two collectives at a time: a small one of a few numbers, and any other.
  enum class Place : std::uint8_t { kSmall, kLarge };
  // `input` fills the memory; what is returned is its number.
  std::uint64_t Post(const Planned& planned, Place place, std::span<const std::byte> input);
  std::uint64_t PostBarrier(bool follows_gradients);
  // `of_epoch`: the iteration as the epoch counts its layout's, from 1. `contributors`: as records
  // have it.
  void PostGradient(const Planned& planned, std::uint64_t iteration, std::uint64_t of_epoch,
                    std::uint32_t tensor, std::span<const std::byte> input,
                    std::uint32_t contributors);

  // ---- ends ----
  struct End {
    std::uint64_t number = 0;  // of a collective, or GradientNumber
    bool ok = false;
    Code code = Code::kOk;
    std::string text{};
    std::vector<std::byte> result{};
  };
  // What has ended since the last call, in order of posts.
  std::optional<std::string> ReadEnds(EpochChecker& checker, std::vector<End>& ends);
  // Whether all gradients of that iteration have ended well, noticed or not.
  bool HasAverages(std::uint64_t iteration, std::size_t tensors_count) const;
  // Whether anything that was posted has not ended, noticed or not.
  bool HasUnended() const;
  // An operation that had ended ended once more.
  std::optional<std::string> CheckAtEnd() const;

  // ---- notes of its owners ----
  std::uint64_t key = 0;  // of its job, once its service knows it
  TimeNs met_ns = kNever;
  TimeNs ends_by_ns = kNever;  // by when nothing is open any more
  bool disturbed = false;      // something has befallen its job: operations may fail
  bool closed = false;

 private:
  friend class EpochChecker;
  struct Open {
    std::uint64_t number = 0;
    std::uint64_t record = 0;
    std::uint32_t segment = 0;
    std::size_t offset = 0;
    std::size_t size = 0;  // 0: a barrier
  };
  struct Posted {
    std::uint64_t number = 0;
    Planned planned{};
    std::vector<std::byte> input{};
  };
  struct Ended {
    std::uint64_t record = 0;
    std::uint64_t word = 0;
  };
  std::uint64_t Word(std::uint64_t record) const;

  support::HandDrivenNode& node_;
  Who who_;
  support::ClientEnd& client_;
  std::vector<std::uint64_t> offsets_;  // of gradients
  std::uint64_t collectives_ = 0;
  std::vector<Open> open_;
  std::vector<Posted> posted_;  // of which the checker does not know yet
  std::vector<Ended> ended_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> gradients_;  // records, by iteration
};

// Compares the results of all sessions of an epoch. A job is known by the key that its nodes have
// agreed on, which they know before anything of it ends well.
class EpochChecker {
 public:
  ElasticSession& Add(support::HandDrivenNode& node, const support::JobSpec& job,
                      ElasticSession::Who who, const service::Layout& layout);
  std::deque<ElasticSession>& sessions() { return sessions_; }

  std::optional<std::string> End(ElasticSession& session, std::uint64_t number,
                                 const ipc::Outcome& outcome, const std::vector<std::byte>& result);
  const CompletionChecker& checker() const { return checker_; }

 private:
  // The checker's name of the session's job; none while its service does not know it.
  std::optional<JobId> Register(const ElasticSession& session);
  void Flush(JobId job, std::uint64_t key);

  CompletionChecker checker_{CompletionChecker::Arithmetic::kReference};
  std::deque<ElasticSession> sessions_;
  std::map<std::uint64_t, JobId> jobs_;  // by key
};

}  // namespace headrace::sim
