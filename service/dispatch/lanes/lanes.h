// The lanes from the view of dispatch: the way to each, the stages on it, their costs, and its row
// on the board. Which stage goes next is decided in blocks.h.
//
// Owned by the flow, on dispatch's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/lanes/lane_port.h"
#include "service/dispatch/lanes/recent_users.h"
#include "service/dispatch/messages.h"
#include "service/lane/messages.h"
#include "service/schedule/queue.h"
#include "service/watch/board_writer.h"
#include "transport/probe/cost_keeper.h"

namespace headrace::service {

class Lanes {
 public:
  Lanes(std::vector<LanePort> ports, BoardWriter& board);

  std::uint8_t count() const { return static_cast<std::uint8_t>(lanes_.size()); }
  const std::string& Name(std::uint8_t lane) const { return lanes_[lane].port.name; }
  // The number of the first lane between nodes; count() where there is none.
  std::size_t first_rail() const { return first_rail_; }
  bool IsBetweenNodes(std::uint8_t lane) const {
    return lanes_[lane].port.place == LanePlace::kBetweenNodes;
  }
  // Codecs in which all lanes between nodes take memory of GPUs, bit (1 << Codec::Kind).
  std::uint32_t DeviceCodecs() const;
  // For the queue.
  std::vector<schedule::LaneTerms> Terms() const;
  // The lane inside the node that carries the operation.
  std::uint8_t InNode(const Operation& operation) const {
    return operation.spec.OnGpu() ? OnGpus() : in_node_;
  }
  // What this node sends for a stage; `message`: to one other node.
  std::uint64_t WireBytes(const Job& job, const schedule::QueuedStage& stage, bool message) const {
    return IsBetweenNodes(stage.lane) && !message ? BytesBetweenNodes(job, stage) : stage.bytes;
  }
  // The lane that an operation whose blocks are in different steps waits for.
  std::uint8_t WaitedFor(const Job& job, const Operation& operation) const;
  // As the board shows it.
  const ipc::LaneRow& Now(std::uint8_t lane) const { return lanes_[lane].row; }
  // For how long it has been at work: as it measures itself, else with a stage on it.
  TimeNs BusyNs(std::uint8_t lane) const { return lanes_[lane].busy_ns; }

  // ---- who uses them ----
  void AddJob(const Job& job, TimeNs now) {
    for (LaneState& lane : lanes_)
      lane.recent_users.Add(job.id(), job.in_force.share.priority, now);
  }
  // Whether another job of the same class moved something on the lane of late.
  bool HasOthers(std::uint8_t lane, const Job& job, TimeNs now) const {
    return lanes_[lane].recent_users.Has(job.id(), job.in_force.share.priority, now);
  }

  // ---- what is on them ----
  // At most as many starts and cancels wait as stages are in flight.
  Outgoing<LaneMessage>& out(std::uint8_t lane) { return lanes_[lane].out; }
  void OnStarted(const Job& job, const schedule::QueuedStage& stage, TimeNs now);
  void OnEnded(Job& job, const Operation& operation, const Block& block, const BlockPart& part,
               const transport::Completion& completion, TimeNs now);
  // The board shows an older state of the lane's queue; taken back once it is shown.
  void SetChanged(std::uint8_t lane) { lanes_[lane].queue_changed = true; }
  bool TestAndClearChanged(std::uint8_t lane) {
    return std::exchange(lanes_[lane].queue_changed, false);
  }
  void ShowQueued(std::uint8_t lane, std::uint64_t stages) {
    lanes_[lane].row.queued_stages = static_cast<decltype(ipc::LaneRow::queued_stages)>(stages);
    Show(lane);
  }

  // ---- what they cost and say ----
  // The lines that were measured for a job between nodes: what a lane starts from.
  void SetCosts(const std::vector<transport::CostLine>& costs);
  // What the job's blocks cost: on the lane inside the node that it uses, and on each rail, in
  // bytes that one node sends. A rate of 0 where nothing is known.
  static std::vector<transport::CostLine> CostsOf(const Job& job);
  // What codecs cost this machine, and from then on what they cost each job's transfers. Of `gpus`:
  // for gradients of GPUs, instead.
  void SetCodecCosts(std::vector<CodecCost> measured, std::span<const CodecCost> of_gpus);
  // Beside wires of those lines, which are CostsOf.
  std::vector<CodecCost> CodecCostsOf(const Job& job,
                                      std::span<const transport::CostLine> lines) const;
  // For how long something has flowed on a lane that measures it.
  void OnFlow(std::uint8_t lane, TimeNs flowed_ns);
  // What the lane itself knows of its wires.
  void OnFacts(const LaneFacts& facts);
  // What the lane sends for the job takes another rail. Those that share it are slower for that, so
  // the costs of all of them are learned anew.
  void OnMoved(Job& job, std::uint8_t lane);
  // What the job's blocks have cost between nodes says nothing any more. What its codecs cost does:
  // processors are the same.
  static void ForgetRails(Job& job);
  // Asks the lanes between nodes that the operation is on whom it waits for.
  void Ask(const Job& job, const Operation& operation);
  // The job's share, for the lanes between nodes.
  void SendShare(Job& job);

  // Notices to another node, by the first lane between nodes: all of a job's go the same way, in
  // their order. While some wait for its inbox, whoever has more keeps them.
  bool MayNotify() const {
    return count() == first_rail_ || lanes_[first_rail_].out.waiting() == 0;
  }
  void Notify(SendNotices notices);
  // All that wait with the job's pairs, which go out before anything else about the job.
  void SendNoticesOf(Job& job);

  // A round trip through every lane; each answers but those whose inbox is full: bit i of the
  // result stands for lane i.
  std::uint64_t Probe(RequestToken token);
  // Once a turn: sends what lanes had no room for. Returns whether anything was sent.
  bool Flush(Jobs& jobs, TimeNs now);
  // When to call Flush if nothing else happens.
  TimeNs NextFlush() const;

 private:
  struct LaneState {
    Outgoing<LaneMessage> out;
    LanePort port;
    ipc::LaneRow row{};
    TimeNs busy_since = 0;
    TimeNs busy_ns = 0;
    transport::CostKeeper cost{transport::CostLine{}};
    TimeNs last_end_ns = 0;  // of a stage, as the lane has it
    bool queue_changed = false;
    RecentUsers recent_users;  // inside the node
  };

  std::uint8_t OnGpus() const;
  static std::uint64_t BytesBetweenNodes(const Job& job, const schedule::QueuedStage& stage);
  // The lane's place among the job's samples: the one inside the node, then the rails.
  std::size_t SampleOf(std::uint8_t lane) const {
    return IsBetweenNodes(lane) ? lane - first_rail_ + std::size_t{1} : 0;
  }
  // Takes the stage's time, multiplied by `times`, into the lane's cost line.
  void Learn(LaneState& lane, double bytes, double times, const transport::Completion& completion,
             TimeNs now);
  // Takes a part of a plan's block that took so long into the job's samples. `bytes`: that a node
  // sends for it as it is.
  void AddSample(Job& job, const Operation& operation, const BlockPart& part,
                 const transport::CodecUse& use, double bytes, double seconds) const;
  static void SetBusy(LaneState& lane, TimeNs busy_ns);
  void Show(std::uint8_t lane);

  std::vector<LaneState> lanes_;
  std::uint8_t in_node_ = 0;
  std::optional<std::uint8_t> on_gpus_;
  std::size_t first_rail_ = 0;
  TimeNs flushed_ns_ = 0;
  bool shares_unsent_ = false;  // of some jobs: InForce::share_unsent
  std::vector<CodecCost> codec_costs_;
  std::vector<CodecCost> gpu_codec_costs_;  // of jobs whose gradients are on GPUs
  BoardWriter& board_;
};

}  // namespace headrace::service
