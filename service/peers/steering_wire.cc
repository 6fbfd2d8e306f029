#include "service/peers/steering_wire.h"

#include <fmt/format.h>

#include "ipc/base/foreign_text.h"
#include "service/accounts/rank_table.h"
#include "service/cluster/setting_changes.h"

namespace headrace::service {
namespace {

// More of a sentence is cut. Of a node that tells, less: its leader puts the node's name in front.
constexpr std::size_t kToldTextMax = 800;
constexpr std::size_t kHeardTextMax = 1000;

Error Corrupt(const std::string& what) { return Error(Code::kCorrupt, "a service sent " + what); }

void WriteSteering(schema::NodeSteering::Builder builder, const Steering& steering) {
  builder.setKind(static_cast<std::uint8_t>(steering.kind));
  builder.setValue(steering.value);
  builder.setUid(steering.uid);
  builder.setNode(steering.node);
}

Result<Steering> ReadSteering(schema::NodeSteering::Reader reader) {
  if (const Status status = CheckNodeSteering(reader.getKind(), reader.getValue()); !status) {
    return Corrupt(status.error().text());
  }
  const auto node = reader.getNode();
  std::string name(node.begin(), node.size());
  if (!name.empty() && !CheckJobName(name)) return Corrupt("a name of a node that is none");
  return Steering{.kind = static_cast<SteeringKind>(reader.getKind()),
                  .value = reader.getValue(),
                  .uid = reader.getUid(),
                  .node = std::move(name)};
}

}  // namespace

void Write(schema::PeerMessage::Builder builder, const RequestSteering& wish) {
  WriteSteering(builder.initRequestSteering(), wish.steering);
}

void Write(schema::PeerMessage::Builder builder, const ReportRankLate& late) {
  builder.initReportRankLate().setText(late.text);
}

void Write(schema::PeerMessage::Builder builder, const AnnounceSteering& steer) {
  WriteSteering(builder.initAnnounceSteering(), steer.steering);
}

void Write(schema::PeerMessage::Builder builder, const AnnounceRankLate& late) {
  builder.initAnnounceRankLate().setText(late.text);
}

Result<PeerMessage> ReadWishSteering(std::uint32_t job, schema::NodeSteering::Reader reader) {
  Result<Steering> steering = ReadSteering(reader);
  if (!steering) return steering.error();
  return PeerMessage(RequestSteering{.job = job, .steering = std::move(steering).value()});
}

Result<PeerMessage> ReadTellLate(std::uint32_t job,
                                 schema::PeerMessage::ReportRankLate::Reader reader) {
  const auto text = reader.getText();
  return PeerMessage(
      ReportRankLate{.job = job, .text = Printable({text.begin(), text.size()}, kToldTextMax)});
}

Result<PeerMessage> ReadSteer(std::uint32_t job, schema::NodeSteering::Reader reader) {
  Result<Steering> steering = ReadSteering(reader);
  if (!steering) return steering.error();
  return PeerMessage(AnnounceSteering{.job = job, .steering = std::move(steering).value()});
}

Result<PeerMessage> ReadHearLate(std::uint32_t job,
                                 schema::PeerMessage::AnnounceRankLate::Reader reader) {
  const auto text = reader.getText();
  return PeerMessage(
      AnnounceRankLate{.job = job, .text = Printable({text.begin(), text.size()}, kHeardTextMax)});
}

}  // namespace headrace::service
