// The flight recorder: writes every block that ends into the board's ring of its job, with who
// posted it when, each stage's times and how it ended; every iteration of every local rank; and
// keeps the sums that the board shows of jobs, ranks and shares of lanes.
//
// Owned by the flow and called by it and its parts, on dispatch's thread. Once a job is open and
// has its layout nothing is allocated; an ended block is one row written.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/records.h"
#include "service/dispatch/job.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Recorder {
 public:
  // The writer outlives the recorder.
  explicit Recorder(BoardWriter& board) : board_(board) {}

  // ---- jobs ----
  // Gives the job a place: a free one, or that of a job that has ended. Of these it is one of the
  // user that has the most of them, so that nobody's jobs push out the records of others; of that
  // user's the one that ended longest ago, first of those that recorded nothing and did not fail.
  // When all places belong to jobs that live it goes unrecorded.
  void OpenJob(Job& job, TimeNs now);
  // The job's ranks of this node are known.
  void Form(Job& job);
  void SetLayout(Job& job);
  void CloseJob(Job& job, TimeNs now);

  // ---- posts, before the flow acts upon them ----
  void Post(Job& job, std::uint64_t sequence, std::uint32_t rank, TimeNs now);
  // The post was checked: it is that many bytes.
  void Take(Job& job, const Operation& operation, std::uint32_t rank, std::uint64_t bytes,
            TimeNs now);
  void PostGradient(Job& job, std::uint32_t rank, std::uint32_t tensor,
                    const ipc::GradientRecord& record, TimeNs now);

  // ---- stages of blocks ----
  void StageQueued(Job& job, Part& part, TimeNs now);
  void StageBegun(Job& job, const Part& part, TimeNs now);
  // It was taken out of the queue.
  void StageDropped(Job& job, Block& block, const Part& part, TimeNs now);
  void StageEnded(Job& job, Block& block, const Part& part, Code code, TimeNs now);

  // ---- ends; null failure: it ended well ----
  void BlockEnded(Job& job, const Operation& operation, Block& block, const Failure* failure,
                  TimeNs now);
  // An operation, whether or not it was cut into blocks before.
  void OperationEnded(Job& job, const Operation& operation, TimeNs now);
  // The plan's block that would have begun next never will.
  void HeadFailed(Job& job, const Failure& failure, TimeNs now);

  // Writes what has changed since the last call.
  void Publish(Job& job);

 private:
  std::uint16_t FindPlace() const;
  // `rank` was the last of this node to post something that others waited for.
  static void NoteLast(Job& job, std::uint32_t rank, TimeNs after_first_ns);
  LaneShare& ShareOf(Job& job, std::uint8_t lane);
  static void NoteStage(Block& block, const Part& part, TimeNs end_ns);
  void FillOperation(const Job& job, const Operation& operation, ipc::FlightRow& row) const;
  void FillPlanned(const Job& job, const WireBlock& wire, ipc::FlightRow& row) const;
  // `failure` as in BlockEnded.
  void Write(Job& job, ipc::FlightRow& row, const Failure* failure);
  void WritePass(Job& job, std::uint32_t rank, const PassNotes& pass);

  BoardWriter& board_;
  struct Place {
    ipc::FlightJobRow row{};
    bool failed = false;  // the job, before it ended
  };
  std::array<Place, ipc::kFlightJobsMax> places_{};
};

}  // namespace headrace::service
