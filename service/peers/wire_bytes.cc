#include "service/peers/wire_bytes.h"

#include <variant>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// A text of the most characters, and what Cap'n Proto adds.
constexpr std::size_t kShortMessageBytes = 2000;

std::size_t BytesOf(const JobPlaces& places) {
  std::size_t bytes = 8 * places.membership.members.size();
  for (const auto* const list : {&places.places, &places.former}) {
    for (const JobPlace& each : *list) bytes += each.node.size() + each.address.size() + 48;
  }
  return bytes;
}

}  // namespace

std::size_t WireBytes(const PeerMessage& message) {
  std::size_t bytes = kShortMessageBytes;
  if (const auto* handed = std::get_if<ReportLayout>(&message)) {
    HR_CHECK(handed->layout != nullptr, handed->job);
    for (const LayoutTensor& tensor : handed->layout->tensors) bytes += tensor.name.size() + 56;
  } else if (const auto* seen = std::get_if<ReportTimesSeen>(&message)) {
    const NodeTimes& times = seen->seen.times;
    bytes += 8 * (times.release_s.size() + times.forward_s.size());
    bytes += 40 * seen->seen.codecs.size();
    for (const SeenIteration& each : times.iterations) {
      bytes += 4 * (each.release_s.size() + each.forward_s.size()) + 64;
    }
  } else if (const auto* piece = std::get_if<PlanPiece>(&message)) {
    bytes += piece->text == nullptr ? 0 : piece->text->size();
  } else if (const auto* report = std::get_if<ReportQuorum>(&message)) {
    bytes += 8 * report->membership.members.size();
    for (const MemberReport& each : report->members) bytes += each.cause.size() + 48;
  } else if (const auto* decided = std::get_if<AnnounceQuorum>(&message)) {
    bytes += 8 * decided->quorum.membership.members.size();
    for (const LostMember& each : decided->quorum.lost) bytes += each.cause.size() + 48;
  } else if (const auto* refused = std::get_if<AnnounceQuorumRefused>(&message)) {
    bytes += 8 * refused->members.size() + refused->cause.size();
  } else if (const auto* known = std::get_if<ReportJobPlaces>(&message)) {
    bytes += BytesOf(known->places);
  } else if (const auto* shown = std::get_if<AnnounceJobPlaces>(&message)) {
    bytes += BytesOf(shown->places);
  } else if (const auto* open = std::get_if<OpenJob>(&message)) {
    for (const AgreedNode& node : open->agreement.nodes) {
      bytes += 4 * node.ranks.size() + node.control.size() + 144;
      for (const std::string& address : node.addresses) bytes += address.size() + 16;
    }
  }
  return bytes;
}

}  // namespace headrace::service
