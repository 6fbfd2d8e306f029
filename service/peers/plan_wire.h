// The peer messages about plans as they go over the network, each read with its checks: sizes that
// go beyond limits, layouts that are none, times that are no times.
#pragma once

#include <cstddef>

#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"

namespace headrace::service {

void WriteCosts(capnp::List<schema::CostLine>::Builder list,
                const std::vector<transport::CostLine>& costs);
Result<std::vector<transport::CostLine>> ReadCosts(capnp::List<schema::CostLine>::Reader list,
                                                   std::size_t lanes_max);

void Write(schema::PeerMessage::Builder builder, const ReportLayout& handed);
void Write(schema::PeerMessage::Builder builder, const ReportTimesSeen& told);
void Write(schema::PeerMessage::Builder builder, const RequestPolicy& wish);
void Write(schema::PeerMessage::Builder builder, const ReportPlanAck& held);
void Write(schema::PeerMessage::Builder builder, const PlanPiece& piece);
void Write(schema::PeerMessage::Builder builder, const AnnouncePlanSwitch& change);

Result<PeerMessage> ReadLayout(std::uint32_t job, schema::PeerMessage::ReportLayout::Reader reader);
Result<PeerMessage> ReadTimes(std::uint32_t job,
                              schema::PeerMessage::ReportTimesSeen::Reader reader);
Result<PeerMessage> ReadWish(std::uint32_t job, schema::PeerMessage::RequestPolicy::Reader reader);
Result<PeerMessage> ReadHold(std::uint32_t job, schema::PeerMessage::ReportPlanAck::Reader reader);
Result<PeerMessage> ReadPlan(std::uint32_t job, schema::PeerMessage::PlanPiece::Reader reader);
Result<PeerMessage> ReadSwitch(std::uint32_t job,
                               schema::PeerMessage::AnnouncePlanSwitch::Reader reader);

}  // namespace headrace::service
