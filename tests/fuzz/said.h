// What nodes and leaders may say of who is left of a job, and of its settings, read off a script:
// what the wire lets through (service/peers/peer_wire.cc checks it), and otherwise any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/codec_choice.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/setting_changes.h"
#include "service/session/quorum.h"
#include "service/session/session.h"
#include "service/session/steering.h"
#include "tests/fuzz/script.h"
#include "transport/network.h"

namespace headrace::fuzz {

// Changes one field of what a leader agreed on with all nodes.
inline void Spoil(service::OpenJob& open, Script& script) {
  service::Agreement& agreement = open.agreement;
  const auto field = script.Read<std::uint8_t>();
  const auto value = script.Read<std::uint64_t>();
  const auto small = static_cast<std::uint32_t>(value);
  service::AgreedNode& node = agreement.nodes[(field >> 4U) % agreement.nodes.size()];
  switch (field % 16) {
    case 0:
      open.self = small;
      break;
    case 1:
      agreement.world_size = small;
      break;
    case 2:
      agreement.epoch = small;
      break;
    case 3:
      agreement.key = value;
      break;
    case 4:
      agreement.plan_version = small;
      break;
    case 5:
      agreement.block_bytes = value;
      break;
    case 6:
      agreement.algorithm = static_cast<transport::Algorithm>(small % 256);
      break;
    case 7:
      agreement.servers_count = small;
      break;
    case 8:
      node.name = std::string(small % 3, 'a');
      break;
    case 9:
      node.ranks.push_back(small);
      break;
    case 10:
      node.ranks = {small % 4};
      break;
    case 11:
      node.ranks.clear();
      break;
    case 12:
      node.addresses.resize(small % 3);
      break;
    case 13:
      agreement.nodes.insert(agreement.nodes.end(), small % 70, node);
      break;
    case 14:
      agreement.nodes.pop_back();
      break;
    default:
      std::swap(agreement.nodes.front(), agreement.nodes.back());
  }
}

// Mostly a small number, else one of the last below `end`.
inline std::uint32_t NumberBelow(Script& script, std::uint32_t end) {
  const auto choice = script.Read<std::uint8_t>();
  return choice < 0xF0 ? choice % 8 : end - 1 - choice % 16;
}

inline service::Membership MembershipOf(Script& script) {
  const auto bits = script.Read<std::uint8_t>();
  service::Membership membership{.generation = NumberBelow(script, service::kEpochMax),
                                 .members = {}};
  for (std::uint32_t member = 0; member < 7; ++member) {
    if ((bits >> member) % 2 != 0) membership.members.push_back(member);
  }
  if (bits % 128 == 0 || bits >= 0x80) membership.members.push_back(service::kEpochMax - 1);
  return membership;
}

// In any order, and any of them twice.
inline std::vector<service::MemberReport> MembersOf(Script& script) {
  std::vector<service::MemberReport> members(script.Read<std::uint8_t>() % 6);
  for (service::MemberReport& each : members) {
    const auto choice = script.Read<std::uint8_t>();
    each.state = static_cast<service::MemberState>(1 + choice % service::kMemberStatesCount);
    each.member = choice / 32U;
    if (service::IsApplicant(each.state)) each.member += service::kApplicantsFrom;
    if (each.state == service::MemberState::kLost) each.cause = "is gone";
  }
  return members;
}

inline service::ReportQuorum ReportOf(Script& script, std::uint32_t number) {
  const auto choice = script.Read<std::uint8_t>();
  return {.job = number,
          .name = choice % 8 == 0 ? "other" : "train",
          .uid = 1000,
          .membership = MembershipOf(script),
          .epoch = NumberBelow(script, service::kEpochMax),
          .rules = {.min_world = choice / 8U % 4,
                    .grace_ms = NumberBelow(script, service::kQuorumGraceMaxMs + 1)},
          .members = MembersOf(script),
          .meets_here = choice < 0xC0,
          .places_epoch = choice / 32U % 2};
}

inline std::vector<service::JobPlace> PlaceListOf(std::uint8_t choice) {
  static const std::array<service::JobPlace, 4> kPlaces{{{.node = "a", .address = "a:7733"},
                                                         {.node = "b", .address = ""},
                                                         {.node = "", .address = "c:7733"},
                                                         {.node = "", .address = ""}}};
  std::vector<service::JobPlace> places;
  for (; choice != 0; choice /= 8) {
    if (choice % 2 != 0) places.push_back(kPlaces[choice / 2U % kPlaces.size()]);
  }
  return places;
}

inline service::JobPlaces PlacesOf(Script& script) {
  const auto choice = script.Read<std::uint8_t>();
  service::JobPlaces places;
  if (choice % 2 != 0) places.membership = MembershipOf(script);
  places.epoch = 1 + NumberBelow(script, service::kEpochMax - 1);
  places.places = PlaceListOf(script.Read<std::uint8_t>());
  if (choice % 4 >= 2) places.former = PlaceListOf(choice / 4);
  return places;
}

inline service::Quorum QuorumOf(Script& script) {
  service::Quorum quorum{.membership = MembershipOf(script),
                         .epoch = 1 + NumberBelow(script, service::kEpochMax - 1),
                         .lost = {}};
  const auto choice = script.Read<std::uint8_t>();
  for (std::uint32_t i = 0; i < choice % 4U; ++i) {
    quorum.lost.push_back({.member = choice / 16U, .cause = "is gone"});
  }
  for (std::uint32_t i = 0; i < choice / 4U % 4; ++i) {
    quorum.admitted.push_back(
        {.applicant = service::kApplicantsFrom + 1 + i, .member = NumberBelow(script, UINT32_MAX)});
  }
  return quorum;
}

// Nothing where the wire lets it not through.
inline std::optional<service::Steering> SteeringOf(Script& script) {
  static const std::array kChoices{CodecChoice(), CodecChoice(Codec(Codec::kInt8)),
                                   CodecChoice(Codec(Codec::kTopK)),
                                   ChoiceNamed("auto:int8,int4").value_or(CodecChoice())};
  service::Steering steering{
      .kind = static_cast<SteeringKind>(1 + script.Read<std::uint8_t>() % 20),
      .value = script.Read<std::uint64_t>(),
      .uid = 0,
      .node = "b"};
  const bool codec = steering.kind == SteeringKind::kCompress && steering.value % 2 == 0;
  if (codec) steering.value = ChoiceValue(kChoices[steering.value / 2 % kChoices.size()]);
  const auto kind = static_cast<std::uint8_t>(steering.kind);
  if (!service::CheckNodeSteering(kind, steering.value)) return {};
  return steering;
}

}  // namespace headrace::fuzz
