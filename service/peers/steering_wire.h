// The peer messages about what people ask and hear as they go over the network, each read with its
// checks: kinds that there are, values within their limits, texts fit for a log line.
#pragma once

#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"

namespace headrace::service {

void Write(schema::PeerMessage::Builder builder, const RequestSteering& wish);
void Write(schema::PeerMessage::Builder builder, const ReportRankLate& late);
void Write(schema::PeerMessage::Builder builder, const AnnounceSteering& steer);
void Write(schema::PeerMessage::Builder builder, const AnnounceRankLate& late);

Result<PeerMessage> ReadWishSteering(std::uint32_t job, schema::NodeSteering::Reader reader);
Result<PeerMessage> ReadTellLate(std::uint32_t job,
                                 schema::PeerMessage::ReportRankLate::Reader reader);
Result<PeerMessage> ReadSteer(std::uint32_t job, schema::NodeSteering::Reader reader);
Result<PeerMessage> ReadHearLate(std::uint32_t job,
                                 schema::PeerMessage::AnnounceRankLate::Reader reader);

}  // namespace headrace::service
