// The descriptions of all messages; wire_fields.h says what they are.
#include "service/peers/peer_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/accounts/rank_table.h"
#include "service/cluster/layouts.h"
#include "service/cluster/setting_changes.h"
#include "service/config/config_address.h"
#include "service/peers/rail_addresses.h"
#include "service/peers/wire_fields.h"
#include "service/session/session.h"

namespace headrace::service {
namespace wire_fields {
namespace {

constexpr std::size_t kTextMax = 1000;  // more of a sentence is cut
// Less for a node that reports, since its leader puts the node's name in front.
constexpr std::size_t kReportTextMax = 800;
constexpr std::size_t kProgramMax = 127;
constexpr std::size_t kTensorNameMax = 255;

constexpr const char* kInvalidTimesText =
    "an invalid recorded time (times are finite and at least 0, a contention is a share)";

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

}  // namespace

// ---- parts of messages ----

void Describe(auto& wire, Is<NodeFacts> auto& facts) {
  wire.Number(facts.protocol_version, HR_FIELD(ProtocolVersion));
  wire.Text(facts.program, kProgramMax, HR_FIELD(Program));
  wire.Name(facts.name, "node", HR_FIELD(Node));
  wire.Number(facts.instance, HR_FIELD(Instance));
  wire.Number(facts.server, HR_FIELD(Server));
  wire.List(facts.addresses, kLanesMax, "addresses of {} lanes", HR_LIST(Addresses));
  wire.Number(facts.nccl_lanes, HR_FIELD(NcclLanes));
  wire.Text(facts.control, kPlaceAddressMax, HR_FIELD(Control));
  wire.List(facts.rail_addresses, kRailsConfiguredMax, "addresses of {} rails",
            HR_LIST(RailAddresses));
  wire.Check([&facts] { return WrongRailAddress(facts.rail_addresses); });
  wire.Check([&facts] {
    return facts.nccl_lanes <= facts.addresses.size()
               ? ""
               : fmt::format("{} NCCL lanes of {} lanes in all", facts.nccl_lanes,
                             facts.addresses.size());
  });
}

void Describe(auto& wire, Is<transport::CostLine> auto& cost) {
  wire.Number(cost.startup_s, HR_FIELD(StartupS));
  wire.Number(cost.s_per_byte, HR_FIELD(SPerByte));
  wire.Check([&cost] {
    return IsCost(cost)
               ? ""
               : fmt::format("an invalid cost line of {} s and {} s/byte (both are 0 to 1e6)",
                             cost.startup_s, cost.s_per_byte);
  });
}

void DescribeCodec(auto& wire, auto& codec, auto get_kind, auto set_kind, auto get_parameter,
                   auto set_parameter) {
  wire.Number(codec.kind, get_kind, set_kind);
  wire.Number(codec.parameter, get_parameter, set_parameter);
  wire.Check([&codec] {
    return IsCodec(codec.kind, codec.parameter)
               ? ""
               : fmt::format("unknown codec {} with parameter {}", +codec.kind, codec.parameter);
  });
}

void Describe(auto& wire, Is<CodecCost> auto& cost) {
  DescribeCodec(wire, cost.codec, HR_FIELD(Codec), HR_FIELD(Parameter));
  wire.Number(cost.share, HR_FIELD(Share));
  wire.Number(cost.encode_s_per_byte, HR_FIELD(EncodeSPerByte));
  wire.Number(cost.decode_s_per_byte, HR_FIELD(DecodeSPerByte));
  wire.Number(cost.of_transfers, HR_FIELD(OfTransfers));
  wire.Check([&cost] {
    return IsCodecCost(cost)
               ? ""
               : fmt::format(
                     "an invalid codec cost: share {}, {} and {} s/byte (a share is {} to "
                     "1, a rate at least 0 and less than {} s/byte)",
                     cost.share, cost.encode_s_per_byte, cost.decode_s_per_byte, kCodecShareMin,
                     kCodecSecondsPerByteMax);
  });
}

void Describe(auto& wire, Is<AgreedNode> auto& node) {
  wire.Name(node.name, "node", HR_FIELD(Name));
  wire.List(node.ranks, transport::kMembersMax, "{} ranks of a node", HR_LIST(Ranks));
  wire.List(node.addresses, kLanesMax, "addresses of {} lanes", HR_LIST(Addresses));
  wire.Text(node.control, kPlaceAddressMax, HR_FIELD(Control));
}

void Describe(auto& wire, Is<Agreement> auto& agreement) {
  wire.Name(agreement.job, "job", HR_FIELD(Job));
  wire.Number(agreement.world_size, HR_FIELD(WorldSize));
  wire.Number(agreement.epoch, HR_FIELD(Epoch));
  wire.Number(agreement.key, HR_FIELD(Key));
  wire.Number(agreement.plan_version, HR_FIELD(PlanVersion));
  wire.Number(agreement.block_bytes, HR_FIELD(BlockBytes));
  wire.Number(agreement.algorithm, HR_FIELD(Algorithm));
  wire.Check([number = static_cast<std::uint8_t>(agreement.algorithm)] {
    return transport::IsAlgorithm(number) ? "" : fmt::format("unknown algorithm {}", number);
  });
  wire.Number(agreement.servers_count, HR_FIELD(ServersCount));
  wire.Number(agreement.verify, HR_FIELD(Verify));
  wire.List(agreement.nodes, transport::kNodesMax, "{} nodes of a job", HR_LIST(Nodes));
  wire.NameOrNothing(agreement.leader, "leader", HR_FIELD(Leader));
}

void Describe(auto& wire, Is<LayoutTensor> auto& tensor) {
  wire.Text(tensor.name, kTensorNameMax, HR_FIELD(Name));
  wire.Number(tensor.offset, HR_FIELD(Offset));
  wire.Number(tensor.count, HR_FIELD(Count));
  wire.Number(tensor.dtype, HR_FIELD(Dtype));
  DescribeCodec(wire, tensor.codec, HR_FIELD(Codec), HR_FIELD(CodecParameter));
  wire.Number(tensor.keeps_codec, HR_FIELD(KeepsCodec));
  wire.Number(tensor.allowed.value, HR_FIELD(Allowed));
  wire.Number(tensor.rows, HR_FIELD(Rows));
  wire.Check([&tensor] {
    const bool right = tensor.rows == 0 || tensor.count % tensor.rows == 0;
    return right ? "" : fmt::format("{} elements in {} rows", tensor.count, tensor.rows);
  });
  wire.Check([&tensor] {
    const bool chooses = !tensor.allowed.empty();
    const bool right =
        AreAllowedCodecs(tensor.allowed.value) && !(chooses && tensor.codec != Codec::kNone);
    return right ? "" : fmt::format("an invalid choice of codecs {:#x}", tensor.allowed.value);
  });
}

void Describe(auto& wire, Is<Layout> auto& layout) {
  wire.Number(layout.reduction, HR_FIELD(Reduction));
  wire.Number(layout.names_hash, HR_FIELD(NamesHash));
  wire.Number(layout.compress_after, HR_FIELD(CompressAfter));
  wire.Number(layout.iterations_before, HR_FIELD(IterationsBefore));
  wire.List(layout.tensors, kLayoutTensorsMax, "a layout of {} tensors", HR_LIST(Tensors));
  wire.Check([&layout]() -> std::string {
    const Status status = CheckLayout(layout);
    return status ? "" : "an invalid layout: " + status.error().text();
  });
}

void Describe(auto& wire, Is<Steering> auto& steering) {
  wire.Number(steering.kind, HR_FIELD(Kind));
  wire.Number(steering.value, HR_FIELD(Value));
  wire.Check([&steering]() -> std::string {
    const Status status =
        CheckNodeSteering(static_cast<std::uint8_t>(steering.kind), steering.value);
    return status ? "" : status.error().text();
  });
  wire.Number(steering.uid, HR_FIELD(Uid));
  wire.NameOrNothing(steering.node, "node", HR_FIELD(Node));
}

void Describe(auto& wire, Is<SeenIteration> auto& seen) {
  wire.Number(seen.iteration, HR_FIELD(Iteration));
  wire.Number(seen.offset_s, HR_FIELD(OffsetS));
  wire.Number(seen.forward_begin_s, HR_FIELD(ForwardBeginS));
  wire.List(seen.release_s, kLayoutTensorsMax, "times of {} tensors", HR_LIST(ReleaseS));
  wire.List(seen.forward_s, kLayoutTensorsMax, "times of {} tensors", HR_LIST(ForwardS));
}

// The schema's Refusal.
void DescribeRefusal(auto& wire, auto& refusal) {
  wire.ErrorCode(refusal.code, HR_FIELD(Code));
  wire.Text(refusal.cause, kTextMax, HR_FIELD(Text));
}

void Describe(auto& wire, Is<Membership> auto& membership) {
  wire.Number(membership.generation, HR_FIELD(Generation));
  wire.List(membership.members, transport::kMembersMax, "{} members of a job", HR_LIST(Members));
  wire.Check([&membership]() -> std::string {
    const Status status = CheckMembership(membership);
    return status ? "" : status.error().text();
  });
}

void Describe(auto& wire, Is<MemberReport> auto& report) {
  wire.Number(report.member, HR_FIELD(Member));
  wire.Number(report.state, HR_FIELD(State));
  wire.Check([state = static_cast<std::uint8_t>(report.state)] {
    return state != 0 && state <= kMemberStatesCount
               ? ""
               : fmt::format("unknown member state {} (1 to {})", state, kMemberStatesCount);
  });
  wire.Check([&report] {
    return IsApplicant(report.state) == (report.member >= kApplicantsFrom)
               ? ""
               : fmt::format("member {} in state {}", report.member,
                             static_cast<int>(report.state));
  });
  wire.Text(report.cause, kReportTextMax, HR_FIELD(Cause));
}

void Describe(auto& wire, Is<Admission> auto& admission) {
  wire.Number(admission.applicant, HR_FIELD(Applicant));
  wire.Number(admission.member, HR_FIELD(Member));
}

void Describe(auto& wire, Is<LostMember> auto& lost) {
  wire.Number(lost.member, HR_FIELD(Member));
  wire.Text(lost.cause, kTextMax, HR_FIELD(Cause));
}

void Describe(auto& wire, Is<Quorum> auto& quorum) {
  wire.Struct(quorum.membership, HR_STRUCT(Membership));
  wire.Number(quorum.epoch, HR_FIELD(Epoch));
  wire.List(quorum.lost, transport::kMembersMax, "{} lost members", HR_LIST(Lost));
  wire.List(quorum.admitted, transport::kMembersMax, "{} admissions", HR_LIST(Admitted));
  wire.Check([epoch = quorum.epoch] {
    return epoch != 0 && epoch < kEpochMax
               ? ""
               : fmt::format("a quorum after epoch {} (1 to {})", epoch, kEpochMax - 1);
  });
}

void Describe(auto& wire, Is<JobPlace> auto& place) {
  wire.NameOrNothing(place.node, "node", HR_FIELD(Node));
  wire.Text(place.address, kPlaceAddressMax, HR_FIELD(Address));
}

void Describe(auto& wire, Is<JobPlaces> auto& places) {
  wire.Number(places.membership.generation, HR_FIELD(Generation));
  wire.List(places.membership.members, transport::kMembersMax, "{} members of a job",
            HR_LIST(Members));
  wire.Number(places.epoch, HR_FIELD(Epoch));
  wire.List(places.places, transport::kNodesMax, "{} places of a job", HR_LIST(Places));
  wire.List(places.former, kFormerLeadersMax, "{} former leaders of a job", HR_LIST(Former));
  wire.Check([&places]() -> std::string {
    if (places.epoch == 0 || places.epoch >= kEpochMax) {
      return fmt::format("places of epoch {} (1 to {})", places.epoch, kEpochMax - 1);
    }
    const bool undecided = places.membership == Membership{};
    const Status status = undecided ? Status() : CheckMembership(places.membership);
    return status ? "" : status.error().text();
  });
}

// ---- messages ----

void Describe(auto& wire, Is<JoinJob> auto& join) {
  wire.Name(join.name, "job", HR_FIELD(Name));
  wire.Number(join.world_size, HR_FIELD(WorldSize));
  wire.Check([size = join.world_size] {
    return size != 0 && size <= transport::kMembersMax
               ? ""
               : fmt::format("a world size of {} (1 to {})", size, transport::kMembersMax);
  });
  wire.Number(join.uid, HR_FIELD(Uid));
  wire.Architecture(join.architecture, HR_FIELD(Architecture));
}

void Describe(auto& wire, Is<ReportRankAttached> auto& rank) {
  wire.Number(rank.rank, HR_FIELD(Rank));
  wire.Number(rank.pid, HR_FIELD(Pid));
  wire.Number(rank.after_epoch, HR_FIELD(AfterEpoch));
  wire.Number(rank.members_hash, HR_FIELD(MembersHash));
  wire.Check([epoch = rank.after_epoch] {
    return epoch <= kAfterEpochMax
               ? ""
               : fmt::format("a rank after epoch {} (at most {})", epoch, kAfterEpochMax);
  });
}

void Describe(auto& wire, Is<ReportRankLost> auto& lost) {
  wire.Number(lost.rank, HR_FIELD(Rank));
  wire.Text(lost.cause, kTextMax, HR_FIELD(Cause));
  wire.Number(lost.exited, HR_FIELD(Exited));
}

void Describe(auto& wire, Is<ReportRankLeft> auto& left) {
  wire.Number(left.rank, HR_FIELD(Rank));
  wire.Number(left.posted, HR_FIELD(Posted));
  wire.Number(left.iterations, HR_FIELD(Iterations));
}

void Describe(auto& wire, Is<ReportJobFailed> auto& failed) {
  wire.ErrorCode(failed.code, HR_FIELD(Code));
  wire.Text(failed.cause, kTextMax, HR_FIELD(Cause));
}

void Describe(auto& wire, Is<JobOpened> auto& opened) { DescribeRefusal(wire, opened); }

void Describe(auto& wire, Is<JobMeasured> auto& measured) {
  wire.Inside([&measured](auto& inside) { DescribeRefusal(inside, measured); }, HR_STRUCT(Refusal));
  wire.List(measured.costs, kLanesMax, "costs of {} lanes", HR_LIST(Costs));
}

void Describe(auto& wire, Is<JobStarted> auto& started) {
  wire.Number(started.hash, HR_FIELD(Hash));
}

void Describe(auto& wire, Is<ReportLayout> auto& report) {
  wire.Policy(report.policy, HR_FIELD(Policy));
  wire.Struct(report.layout, HR_STRUCT(Layout));
}

void Describe(auto& wire, Is<ReportTimesSeen> auto& report) {
  auto& times = report.seen.times;
  wire.Number(times.iteration, HR_FIELD(Iteration));
  wire.Number(times.iteration_s, HR_FIELD(IterationS));
  wire.Number(times.running_s, HR_FIELD(RunningS));
  wire.List(times.release_s, kLayoutTensorsMax, "times of {} tensors", HR_LIST(ReleaseS));
  wire.List(times.forward_s, kLayoutTensorsMax, "times of {} tensors", HR_LIST(ForwardS));
  wire.List(report.seen.costs, kLanesMax + 1, "costs of {} lanes", HR_LIST(Costs));
  wire.List(report.seen.codecs, kCodecCostsMax, "costs of {} codecs", HR_LIST(Codecs));
  wire.Number(report.seen.rails_changed, HR_FIELD(RailsChanged));
  wire.List(times.iterations, plan::kRecordedMax, "{} recorded iterations", HR_LIST(Iterations));
  wire.Number(times.contention, HR_FIELD(Contention));
  wire.Check([&times] { return AreRecorded(times) ? "" : kInvalidTimesText; });
}

void Describe(auto& wire, Is<RequestPolicy> auto& request) {
  std::optional<plan::Policy> policy = request.policy;
  wire.Policy(policy, HR_FIELD(Policy));
  wire.Check([&policy] { return policy ? "" : "a policy request without a policy"; });
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(request)>>) {
    request.policy = policy.value_or(request.policy);
  }
}

void Describe(auto& wire, Is<ReportPlanAck> auto& ack) {
  wire.Number(ack.version, HR_FIELD(Version));
  wire.Number(ack.hash, HR_FIELD(Hash));
  wire.Number(ack.iteration, HR_FIELD(Iteration));
  // Later iterations are named by adding to it.
  wire.Check([&ack] {
    return ack.iteration <= UINT64_MAX / 2
               ? ""
               : fmt::format("iteration {} (at most {})", ack.iteration, UINT64_MAX / 2);
  });
}

void Describe(auto& wire, Is<RequestSteering> auto& request) { Describe(wire, request.steering); }

void Describe(auto& wire, Is<ReportRankLate> auto& late) {
  wire.Text(late.text, kReportTextMax, HR_FIELD(Text));
}

void Describe(auto& wire, Is<ReportBlockHashed> auto& hashed) {
  wire.Number(hashed.hash.name.planned, HR_FIELD(Planned));
  wire.Number(hashed.hash.name.number, HR_FIELD(Number));
  wire.Number(hashed.hash.name.block, HR_FIELD(Block));
  wire.Number(hashed.hash.hash, HR_FIELD(Hash));
}

void Describe(auto& wire, Is<ReportQuorum> auto& report) {
  wire.Name(report.name, "job", HR_FIELD(Name));
  wire.Number(report.uid, HR_FIELD(Uid));
  wire.Struct(report.membership, HR_STRUCT(Membership));
  wire.Number(report.epoch, HR_FIELD(Epoch));
  wire.Number(report.rules.min_world, HR_FIELD(MinWorld));
  wire.Number(report.rules.grace_ms, HR_FIELD(GraceMs));
  wire.Number(report.rules.stall_ms, HR_FIELD(StallMs));
  wire.List(report.members, transport::kMembersMax, "{} members of a job", HR_LIST(Members));
  wire.Number(report.meets_here, HR_FIELD(MeetsHere));
  wire.Number(report.places_epoch, HR_FIELD(PlacesEpoch));
  wire.Check([&report] {
    return report.epoch < kEpochMax && report.rules.grace_ms <= kQuorumGraceMaxMs &&
                   report.rules.stall_ms <= kQuorumStallMaxMs
               ? ""
               : fmt::format(
                     "a quorum question after epoch {} with a grace of {} ms, and {} ms "
                     "for who stands still (at most {}, {} and {})",
                     report.epoch, report.rules.grace_ms, report.rules.stall_ms, kEpochMax - 1,
                     kQuorumGraceMaxMs, kQuorumStallMaxMs);
  });
}

void Describe(auto& wire, Is<ReportJobPlaces> auto& report) {
  wire.Name(report.name, "job", HR_FIELD(Name));
  wire.Number(report.uid, HR_FIELD(Uid));
  wire.Struct(report.places, HR_STRUCT(Places));
}

void Describe(auto& wire, Is<AnnounceJobPlaces> auto& announced) {
  wire.Struct(announced.places, HR_STRUCT(Places));
}

void Describe(auto& wire, Is<AnnounceQuorumWaits> auto& waits) {
  wire.Text(waits.text, kTextMax, HR_FIELD(Text));
}

void Describe(auto& wire, Is<AnnounceQuorum> auto& announced) {
  wire.Struct(announced.quorum, HR_STRUCT(Quorum));
}

void Describe(auto& wire, Is<AnnounceQuorumRefused> auto& refused) {
  wire.Inside([&refused](auto& inside) { DescribeRefusal(inside, refused); }, HR_STRUCT(Refusal));
  wire.List(refused.members, transport::kMembersMax, "{} members of a job", HR_LIST(Members));
}

void Describe(auto& wire, Is<AnnounceSteering> auto& announced) {
  Describe(wire, announced.steering);
}

void Describe(auto& wire, Is<AnnounceRankLate> auto& late) {
  wire.Text(late.text, kTextMax, HR_FIELD(Text));
}

void Describe(auto& wire, Is<AnnounceJobForming> auto& forming) {
  wire.Text(forming.text, kTextMax, HR_FIELD(Text));
  wire.Number(forming.refused, HR_FIELD(Refused));
}

void Describe(auto& wire, Is<OpenJob> auto& open) {
  wire.Number(open.self, HR_FIELD(Self));
  wire.Struct(open.agreement, HR_STRUCT(Agreement));
}

void Describe(auto& wire, Is<StartJob> auto& start) {
  wire.List(start.costs, kLanesMax, "costs of {} lanes", HR_LIST(Costs));
  wire.Number(start.hash, HR_FIELD(Hash));
}

void Describe(auto& wire, Is<AnnounceJobFailed> auto& failed) { DescribeRefusal(wire, failed); }

void Describe(auto& wire, Is<AnnounceRankLeft> auto& left) {
  wire.Number(left.rank, HR_FIELD(Rank));
  wire.Number(left.posted, HR_FIELD(Posted));
  wire.Number(left.iterations, HR_FIELD(Iterations));
  wire.Text(left.cause, kTextMax, HR_FIELD(Cause));
}

void Describe(auto& wire, Is<PlanPiece> auto& piece) {
  wire.Number(piece.version, HR_FIELD(Version));
  wire.Number(piece.index, HR_FIELD(Index));
  wire.Number(piece.last, HR_FIELD(Last));
  wire.Bytes(piece.text, kPlanPieceMax, "a piece of a plan of {} bytes", HR_FIELD(Text));
}

void Describe(auto& wire, Is<AnnouncePlanSwitch> auto& change) {
  wire.Number(change.version, HR_FIELD(Version));
  wire.Number(change.from_iteration, HR_FIELD(FromIteration));
  wire.Number(change.before_s, HR_FIELD(BeforeS));
  wire.Number(change.iterations_before, HR_FIELD(IterationsBefore));
  wire.Check([&change]() -> std::string {
    const Status status = CheckIterationsBefore(change.iterations_before);
    return status ? "" : status.error().text();
  });
  wire.Check([&change] {
    return IsTime(change.before_s)
               ? ""
               : fmt::format("an invalid iteration time of {} s (finite and at least 0)",
                             change.before_s);
  });
}

void Describe(auto& wire, Is<Goodbye> auto& goodbye) {
  wire.Text(goodbye.cause, kTextMax, HR_FIELD(Cause));
}

}  // namespace wire_fields

namespace {

using wire_fields::FromWire;
using wire_fields::ToWire;

// ---- which member of the schema's union a message is: that of its name ----

template <typename Message>
struct Member;

#define HR_MEMBER(Type)                                                                   \
  template <>                                                                             \
  struct Member<Type> {                                                                   \
    static bool Is(const schema::PeerMessage::Reader& wire) { return wire.is##Type(); }   \
    static auto Get(const schema::PeerMessage::Reader& wire) { return wire.get##Type(); } \
    static auto Init(schema::PeerMessage::Builder& wire) { return wire.init##Type(); }    \
  };
// One without fields.
#define HR_MEMBER_ALONE(Type)                                                           \
  template <>                                                                           \
  struct Member<Type> {                                                                 \
    static bool Is(const schema::PeerMessage::Reader& wire) { return wire.is##Type(); } \
    static void Init(schema::PeerMessage::Builder& wire) { wire.set##Type(); }          \
  };
HR_MEMBER(JoinJob)
HR_MEMBER(ReportRankAttached)
HR_MEMBER(ReportRankLost)
HR_MEMBER(ReportRankLeft)
HR_MEMBER(ReportJobFailed)
HR_MEMBER_ALONE(ForgetJob)
HR_MEMBER(JobOpened)
HR_MEMBER(JobMeasured)
HR_MEMBER(JobStarted)
HR_MEMBER(ReportLayout)
HR_MEMBER(ReportTimesSeen)
HR_MEMBER(RequestPolicy)
HR_MEMBER(ReportPlanAck)
HR_MEMBER(RequestSteering)
HR_MEMBER(ReportRankLate)
HR_MEMBER(ReportBlockHashed)
HR_MEMBER(ReportQuorum)
HR_MEMBER_ALONE(LeaveQuorum)
HR_MEMBER(ReportJobPlaces)
HR_MEMBER(AnnounceQuorumWaits)
HR_MEMBER(AnnounceQuorum)
HR_MEMBER(AnnounceQuorumRefused)
HR_MEMBER(AnnounceSteering)
HR_MEMBER(AnnounceRankLate)
HR_MEMBER_ALONE(AnnounceMembersWait)
HR_MEMBER(AnnounceJobPlaces)
HR_MEMBER(AnnounceJobForming)
HR_MEMBER(OpenJob)
HR_MEMBER_ALONE(MeasureJob)
HR_MEMBER(StartJob)
HR_MEMBER(AnnounceJobFailed)
HR_MEMBER(AnnounceRankLeft)
HR_MEMBER_ALONE(CloseJob)
HR_MEMBER(PlanPiece)
HR_MEMBER(AnnouncePlanSwitch)
HR_MEMBER(Goodbye)

template <typename Message>
constexpr bool kHasFields = requires(const schema::PeerMessage::Reader& wire) {
  Member<Message>::Get(wire);
};

template <typename Message>
Result<PeerMessage> ReadAs(const schema::PeerMessage::Reader& reader) {
  Message message;
  if constexpr (requires { message.job; }) message.job = reader.getJob();
  if constexpr (kHasFields<Message>) {
    FromWire wire(Member<Message>::Get(reader));
    Describe(wire, message);
    if (!wire.status()) return wire.status().error();
  }
  return PeerMessage(std::move(message));
}

template <std::size_t... kIndex>
Result<PeerMessage> ReadAny(const schema::PeerMessage::Reader& reader,
                            std::index_sequence<kIndex...> /*all*/) {
  Result<PeerMessage> message = wire_fields::Corrupt(
      "a message of a kind that this release does not know: install the same release on all nodes");
  const auto read = [&reader, &message]<typename Kind>(std::type_identity<Kind> /*kind*/) {
    if (Member<Kind>::Is(reader)) message = ReadAs<Kind>(reader);
  };
  (read(std::type_identity<std::variant_alternative_t<kIndex, PeerMessage>>{}), ...);
  return message;
}

}  // namespace

void WriteHello(schema::PeerHello::Builder hello, const NodeFacts& facts) {
  ToWire wire(hello);
  Describe(wire, facts);
}

Result<NodeFacts> ReadHello(schema::PeerHello::Reader hello) {
  NodeFacts facts;
  FromWire wire(hello);
  Describe(wire, facts);
  if (!wire.status()) return wire.status().error();
  return facts;
}

void WriteMessage(schema::PeerMessage::Builder builder, const PeerMessage& message) {
  std::visit(
      [&builder](const auto& each) {
        using Message = std::remove_cvref_t<decltype(each)>;
        if constexpr (requires { each.job; }) builder.setJob(each.job);
        if constexpr (kHasFields<Message>) {
          ToWire wire(Member<Message>::Init(builder));
          Describe(wire, each);
        } else {
          Member<Message>::Init(builder);
        }
      },
      message);
}

Result<PeerMessage> ReadMessage(schema::PeerMessage::Reader reader) {
  return ReadAny(reader, std::make_index_sequence<std::variant_size_v<PeerMessage>>());
}

}  // namespace headrace::service
