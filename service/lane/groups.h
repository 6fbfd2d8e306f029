// The groups of a lane between nodes: opened, measured and closed at requests of peers, which gets
// the answers. The lane's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "service/actor/outgoing.h"
#include "service/dispatch/messages.h"
#include "service/lane/messages.h"
#include "service/peers/messages.h"
#include "transport/network.h"
#include "transport/probe/probe.h"

namespace headrace::service {

class Groups {
 public:
  // All outlive this.
  Groups(std::uint8_t lane, transport::NetworkTransport& transport,
         InboxWriter<DispatchMessage>& dispatch, InboxWriter<PeersMessage>& peers)
      : lane_(lane), transport_(transport), dispatch_(dispatch), peers_(peers) {}

  // What goes to lanes between nodes only.
  void Handle(const LaneMessage& message);

  // Keeps the completions of measurements back, and goes on with what is being measured. Returns
  // whether there was anything to do.
  bool Work(std::vector<transport::Completion>& completions, TimeNs now);

  // Sends dispatch what has come from other nodes' dispatch. Returns whether there was anything.
  bool PassNotices(Outgoing<DispatchMessage>& dispatch);

  // Asks dispatch to have staging of groups pinned for GPUs, or unpinned. Returns whether there was
  // anything to ask.
  bool PassStaging(Outgoing<DispatchMessage>& dispatch);

  // When facts are due that could not be sent yet.
  TimeNs NextDeadline() const;

 private:
  struct Group {
    transport::ProbeGroup facts;
    std::optional<transport::CostProbe> probe;  // while it is being measured
  };

  void Open(const transport::GroupOptions& options);
  void Measure(std::uint32_t group);
  void Close(const CloseGroup& message);
  void Send(const SendNotices& message);
  void ReportIfServed(std::uint32_t group, const Error& failure);
  bool Finish(std::uint32_t number, Group& group);
  bool HasFacts() const;
  TimeNs FactsDue() const;
  void SendFacts(TimeNs now);
  bool SendMoves();
  void Answer(PeersMessage message);

  std::uint8_t lane_;
  transport::NetworkTransport& transport_;
  InboxWriter<DispatchMessage>& dispatch_;
  Outgoing<PeersMessage> peers_;
  std::map<std::uint32_t, Group> groups_;
  std::vector<std::uint32_t> closed_;  // groups that are closed and were still being measured
  std::uint64_t dropped_sent_ = 0;
  bool wires_changed_ = false;  // a group was opened since facts were sent
  TimeNs facts_sent_ns_ = 0;
  std::vector<transport::Notice> notices_;          // scratch
  std::vector<transport::MovedLink> moves_;         // scratch
  std::vector<transport::StagingRequest> staging_;  // scratch
};

}  // namespace headrace::service
