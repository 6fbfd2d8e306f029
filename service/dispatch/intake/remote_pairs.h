// Handles the notices of other nodes about sends between their ranks and this node's
// (session/send_notices.h).
//
// The lane has checked each notice by itself. One that is invalid for the job ends it with
// kCorrupt; one about a send that has ended meanwhile is ignored.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include "service/dispatch/blocks/flow.h"
#include "service/dispatch/intake/intake.h"
#include "service/dispatch/job/job.h"

namespace headrace::service {

class RemotePairs {
 public:
  // Both outlive it.
  RemotePairs(Flow& flow, const Intake& intake) : flow_(flow), intake_(intake) {}

  void Handle(Job& job, SendNotices message, TimeNs now);
  // The job has formed: what came early.
  void HandleEarly(Job& job, TimeNs now);
  // The answer to notices about a job that is over here: every rank of this node has left it.
  static SendNotices Refusals(const SendNotices& message);

 private:
  void Handle(Job& job, std::uint32_t node, SendNotice& notice, TimeNs now);
  void OnAnnounced(Job& job, std::uint32_t node, SendNotice& notice, TimeNs now);
  // The pair of an announced send: the receive that waits for it, or a new one. Nothing when it was
  // refused.
  Pair* FindOrOpen(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now);
  std::optional<Failure> WhyNot(const Job& job, const SendNotice& notice) const;
  void OnReady(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now);
  void OnMayGo(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now);
  void OnWithdrawn(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now);
  void OnSentRefused(Job& job, Pair& pair, const SendNotice& notice);
  void OnRefused(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now);
  void OnReceived(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now);
  void OnLeft(Job& job, const SendNotice& notice, TimeNs now);
  // Keeps what came before this node knew that the job had formed.
  void KeepEarly(Job& job, SendNotices message, TimeNs now);
  static bool AreWhereItSays(const Job& job, std::uint32_t node, const SendNotice& notice);
  // The send of this node that the notice is about, whether it has ended or not; null when its
  // place is another's.
  static Pair* FindGoing(Job& job, std::uint32_t node, const SendNotice& notice);
  // Only if it is open.
  static Pair* FindSend(Job& job, std::uint32_t node, const SendNotice& notice);
  // Only if it ended when it was announced, and its message was not received.
  static Pair* FindSent(Job& job, std::uint32_t node, const SendNotice& notice);
  void OnProtocolError(Job& job, std::uint32_t node, const std::string& what, TimeNs now);

  Flow& flow_;
  const Intake& intake_;
};

}  // namespace headrace::service
