// From a record that was read from a rank's ring to a post: checks it, finds what it posts, and,
// once the rank's memory is ready, gives it to the flow.
//
// A post may await a word of the rank's GPU. It is read and checked with its record, and open from
// then on, so that it times out and fails like others. It is ready, and counts as posted for waits
// and measurements, once the word was seen.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ipc/records.h"
#include "service/dispatch/blocks/flow.h"
#include "service/dispatch/job/job.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Intake {
 public:
  // Both outlive it.
  Intake(Flow& flow, BoardWriter& board) : flow_(flow), recorder_(flow.recorder()), board_(board) {}

  // Posts that one uid may have open at a time; 0: any number.
  void LimitPosts(std::uint64_t per_uid) { posts_per_uid_ = per_uid; }
  // From now on no new operation is accepted.
  void RefuseNew() { refusing_ = true; }
  bool refuses_new() const { return refusing_; }
  void RemoveJob(const Job& job) { awaited_ -= job.open.awaited; }

  // A record that was read from the ring of `rank`.
  void Post(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now);

  // Reads the ready words that records await; posts whose word is there count as posted now.
  // Returns whether there was any.
  bool CheckReadyWords(Jobs& jobs, TimeNs now);
  // When to read them again, because no GPU can wake a thread. kNever while none is awaited.
  TimeNs next_look_at_words() const { return awaited_ == 0 ? kNever : looked_ns_ + kWordsEvery; }

 private:
  // The interval while a word is awaited and nothing else happens. Other turns read them as well.
  static constexpr TimeNs kWordsEvery = 30 * kMicrosecond;

  void PostOperation(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now);
  // Keeps the parts table of the current record; returns the failure if it cannot be carried out.
  std::optional<Failure> KeepParts(Job& job, const Operation& operation, std::uint32_t rank,
                                   const OperationSpec& spec);
  // Opens the operation in a free slot; returns false if it was refused.
  bool Open(Job& job, Operation& operation, std::uint32_t rank, const ipc::Record& record,
            TimeNs now);
  // The failure of a post whose slot is still in use by the operation kOperationsMax before it.
  static Failure TooFarAhead(Job& job, const Operation& earlier);
  void Join(Job& job, Operation& operation, std::uint32_t rank, const OperationSpec& spec,
            const ipc::Record& record, TimeNs now);
  // Notes that the operation uses the rank's memory from now on. Returns false when another open
  // post uses it: the operation has failed then.
  bool UseMemory(Job& job, Operation& operation, std::uint32_t rank, const OperationSpec& spec,
                 TimeNs now);

  // ---- sends and receives ----
  void FailPost(Job& job, Pair& pair, Failure failure, TimeNs now);
  void PostPair(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now);
  // The pair of the post: the one that waits for it, or a new one. Nothing when the post has ended.
  Pair* FindOrOpenPair(Job& job, std::uint32_t rank, const ipc::Record& record,
                       const PairSides& sides, TimeNs now);
  // Why the rank's post may not open a pair.
  std::optional<Failure> WhyNoPair(const Job& job, std::uint32_t rank,
                                   const PairSides& sides) const;

  void PostGradient(Job& job, std::uint32_t rank, const ipc::GradientRecord& record, TimeNs now);
  // Why the gradient is refused, and the job's gradients with it.
  std::optional<Failure> CheckAndPost(Job& job, std::uint32_t rank,
                                      const ipc::GradientRecord& record, TimeNs now);
  std::optional<Failure> FindGradientOverlap(Job& job, std::uint32_t rank, std::uint32_t tensor);
  // The rank's memory of the gradient is ready.
  void GradientReady(Job& job, std::uint32_t rank, std::uint32_t tensor,
                     const ipc::GradientRecord& record, TimeNs now);

  // Why the owner of the job may not have another post open.
  std::optional<Failure> OverQuota(const Job& job);

  // ---- ready words ----
  void Await(Job& job, std::uint32_t rank, const ipc::Record& record, std::uint64_t sequence);
  bool CheckReadyWordsOf(Job& job, std::uint32_t rank, TimeNs now);
  // Whether the post is still waited for.
  static bool IsAwaited(Job& job, std::uint32_t rank, const AwaitedPost& post);
  void MarkReady(Job& job, std::uint32_t rank, const AwaitedPost& post, TimeNs now);

  Flow& flow_;
  Recorder& recorder_;
  BoardWriter& board_;
  std::uint64_t posts_per_uid_ = 0;
  std::uint64_t awaited_ = 0;  // of all jobs
  TimeNs looked_ns_ = 0;       // at ready words
  bool refusing_ = false;
  std::array<ipc::PartRow, transport::kMembersMax> rows_{};  // of the record at hand
};

}  // namespace headrace::service
