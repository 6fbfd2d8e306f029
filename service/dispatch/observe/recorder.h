// Keeps a job's record: its row and those of its ranks, work items and shares of lanes on the
// board; sums; and the flight recorder, which writes every ended block into the board's ring of its
// job, with the time of each rank's post, each stage's times and how it ended, and every iteration
// of every local rank.
//
// It reads jobs and never writes them. Owned by the flow and called by it and its parts, on
// dispatch's thread. Once a job is open and has its layout nothing is allocated; an ended block is
// one row written.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/records.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/observe/record.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Recorder {
 public:
  // The writer outlives the recorder.
  explicit Recorder(BoardWriter& board) : board_(board) {}

  // ---- jobs ----
  // The record of a new job, which lives until CloseJob. Gives the job a place: a free one, or that
  // of a job that has ended. Of these it is one of the user that has the most of them, so that
  // nobody's jobs push out the records of others; of that user's the one that ended longest ago,
  // first of those that recorded nothing and did not fail. When all places belong to jobs that live
  // it goes unrecorded.
  JobRecord& OpenJob(const Job& job, TimeNs now);
  // The job's ranks of this node are known.
  void Form(const Job& job);
  void SetLayout(const Job& job);
  void CloseJob(const Job& job, TimeNs now);
  void RankAttached(const Job& job, std::uint32_t rank);
  void RankDiscarded(const Job& job, std::uint32_t rank);
  // The head of its plan was held back on purpose.
  void Held(const Job& job, TimeNs time_ns);

  // ---- posts, before the flow acts upon them ----
  void Post(const Job& job, std::uint64_t sequence, std::uint32_t rank, TimeNs now);
  // The post was checked: it is that many bytes.
  void OnPosted(const Job& job, const Operation& operation, std::uint32_t rank, std::uint64_t bytes,
                TimeNs now);
  void PostGradient(const Job& job, std::uint32_t rank, std::uint32_t tensor,
                    const ipc::GradientRecord& record, TimeNs now);

  // ---- work items ----
  void ItemOpened(const Job& job, const Operation& operation);
  // What it waits for, or where it is, has changed.
  void ShowItem(const Job& job, const Operation& operation);
  // Whether or not it was cut into blocks before.
  void ItemEnded(const Job& job, const Operation& operation, TimeNs now);
  // The plan's block that would have begun next never will.
  void HeadFailed(const Job& job, const Failure& failure, TimeNs now);

  // ---- stages of blocks ----
  void StageQueued(const Job& job, const Block& block, const BlockPart& part, TimeNs now);
  void StageBegun(const Job& job, const Block& block, const BlockPart& part, TimeNs now);
  // It was taken out of the queue.
  void StageDropped(const Job& job, const Block& block, const BlockPart& part, TimeNs now);
  void StageEnded(const Job& job, const Block& block, const BlockPart& part, Code code, TimeNs now);
  // What a transfer's encoding came to.
  void Encoded(const Job& job, const Operation& operation, const Block& block,
               const transport::CodecUse& use);
  // What people are to be told of values that were not finite, once an iteration has ended. Nothing
  // where none has; each time only after twice as many iterations.
  std::optional<std::string> NotFiniteText(const Job& job);
  // The job's world size before its service was lost last; 0: it has not been.
  static std::uint32_t WorldBefore(const Job& job);
  // Bytes have reached their ranks; those that pass several stages count once.
  void Moved(const Job& job, std::uint64_t bytes);
  // A send, its receive, or both, of ranks of this node, well.
  void PairEnded(const Job& job, std::uint32_t sends, std::uint32_t receives, std::uint64_t bytes);
  // Null failure: it ended well.
  void BlockEnded(const Job& job, const Operation& operation, const Block& block,
                  const Failure* failure, TimeNs now);

  // Writes what has changed since the last call.
  void Publish(const Job& job);

 private:
  std::uint16_t FindPlace() const;
  void PublishFlight(FlightRecord& flight);
  // `rank` was the last of this node to post something that others waited for.
  static void NoteLast(const Job& job, std::uint32_t rank, TimeNs after_first_ns);
  LaneShare& ShareOf(const Job& job, std::uint8_t lane);
  static void NoteStage(const Job& job, const Block& block, const BlockPart& part, TimeNs begin_ns,
                        TimeNs end_ns);
  // `failure` as in BlockEnded.
  void Write(FlightRecord& flight, ipc::FlightRow& row, const Failure* failure);
  void WritePass(FlightRecord& flight, std::uint32_t rank, const PassRecord& pass);

  BoardWriter& board_;
  std::vector<std::unique_ptr<JobRecord>> records_;
  struct Place {
    ipc::FlightJobRow row{};
    bool failed = false;  // the job, before it ended
  };
  std::array<Place, ipc::kFlightJobsMax> places_{};
  // Jobs that have failed and may go on, the newest last; as many as there are rows. Beyond that
  // the oldest of the user that has the most is forgotten.
  struct Lost {
    std::string name;
    std::uint32_t uid = 0;
    std::uint32_t world_size = 0;
    TimeNs failed_ns = 0;
    RecoveryRecord recovery;
  };
  std::deque<Lost> lost_;
  // Takes over what is known of the epoch before.
  void Resume(const Job& job, JobRecord& record);
};

}  // namespace headrace::service
