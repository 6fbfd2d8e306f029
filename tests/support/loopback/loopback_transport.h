// A transport for tests and simulation: in this process, on this thread, in virtual time.
//
// Time is whatever `now` says. The link carries one transfer at a time, in the order of the posts;
// one of n bytes (per member) takes startup_ns + n * ns_per_byte, and a piece of it happens once
// `now` has reached the piece's end, at most one piece per DoWork. Misbehaviour comes from a script
// (AnswerBusy, Fail) or from a seed; the same options, script and calls give the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "transport/transport.h"

namespace headrace::transport {

struct LoopbackOptions {
  std::uint32_t transfers_max = 16;
  std::size_t piece_size = 4096;  // bytes of one member's memory, a multiple of 8
  TimeNs startup_ns = 0;
  double ns_per_byte = 0;

  // Drawn from the seed, per post: the shares of posts that are answered kBusy, and of accepted
  // transfers that end with failure_code at some piece; the most a transfer's time is stretched by.
  std::uint64_t seed = 1;
  double busy_share = 0;
  double failure_share = 0;
  Code failure_code = Code::kPeerLost;
  double jitter_share = 0;
};

class LoopbackTransport final : public Transport {
 public:
  explicit LoopbackTransport(const LoopbackOptions& options);

  const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;

  // The next `posts_count` posts are answered kBusy.
  void AnswerBusy(std::uint32_t posts_count) { busy_posts_ += posts_count; }

  // The transfer with this token, open or yet to come, ends with `code` in place of its piece
  // number `pieces` (from 0), or of its end where it has no such piece.
  void Fail(std::uint64_t token, Code code, std::uint64_t pieces);

  // When DoWork has something to do next; kNever where nothing is open. What a simulation sets its
  // clock to.
  TimeNs NextDue() const;

 private:
  struct Open {
    Transfer transfer;
    TimeNs posted_ns = 0;
    TimeNs begin_ns = kNever;  // kNever: still behind others
    double stretch = 1;        // jitter, as a factor of the transfer's time
    std::uint64_t done = 0;    // elements
    std::uint64_t pieces = 0;  // done
    bool cancelled = false;
  };
  struct Failure {
    std::uint64_t token = 0;
    Code code = Code::kOk;
    std::uint64_t pieces = 0;
  };

  double Draw() { return std::uniform_real_distribution<>(0, 1)(random_); }
  void BeginHead();
  std::uint64_t PieceEnd(const Open& open) const;
  TimeNs DueOf(const Open& head) const;
  Code FailureOf(const Open& head, bool last) const;
  void ReportCancelled(TimeNs now, std::vector<Completion>& completions);
  void EndHead(Code code, TimeNs end, std::vector<Completion>& completions);

  LoopbackOptions options_;
  Capabilities capabilities_;
  std::mt19937_64 random_;
  std::uint32_t busy_posts_ = 0;
  std::vector<Failure> failures_;
  std::deque<Open> queue_;
  TimeNs link_free_ns_ = 0;  // when the transfer before the head ended
};

}  // namespace headrace::transport
