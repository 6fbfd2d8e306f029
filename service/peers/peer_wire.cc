#include "service/peers/peer_wire.h"

#include <fmt/format.h>

#include "ipc/base/foreign_text.h"
#include "service/accounts/rank_table.h"
#include "service/peers/plan_wire.h"
#include "service/peers/steering_wire.h"
#include "service/session/session.h"

namespace headrace::service {
namespace {

constexpr std::size_t kTextMax = 1000;  // more of a sentence is cut
constexpr std::size_t kProgramMax = 127;

std::string Text(capnp::Text::Reader text, std::size_t size_max = kTextMax) {
  return Printable({text.begin(), text.size()}, size_max);
}

Code ReadCode(std::uint8_t code) {
  return code < kCodesCount ? static_cast<Code>(code) : Code::kInternal;
}

Result<std::string> Name(capnp::Text::Reader text) {
  std::string name(text.begin(), text.size());
  if (!CheckJobName(name)) return Corrupt("a name that is none");
  return name;
}

template <typename Build>
void WriteAddresses(const std::vector<std::string>& addresses, Build init) {
  auto list = init(static_cast<unsigned>(addresses.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list.set(i, {reinterpret_cast<const kj::byte*>(addresses[i].data()), addresses[i].size()});
  }
}

Result<std::vector<std::string>> ReadAddresses(capnp::List<capnp::Data>::Reader list) {
  if (list.size() > kLanesMax) return Corrupt(fmt::format("addresses of {} lanes", list.size()));
  std::vector<std::string> addresses;
  for (const capnp::Data::Reader bytes : list) {
    if (bytes.size() > kLaneAddressMax) {
      return Corrupt(fmt::format("a lane's address of {} bytes", bytes.size()));
    }
    addresses.emplace_back(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  }
  return addresses;
}

void WriteAgreement(schema::Agreement::Builder builder, const Agreement& agreement) {
  builder.setJob(agreement.job);
  builder.setWorldSize(agreement.world_size);
  builder.setEpoch(agreement.epoch);
  builder.setKey(agreement.key);
  builder.setPlanVersion(agreement.plan_version);
  builder.setBlockBytes(agreement.block_bytes);
  builder.setAlgorithm(static_cast<std::uint8_t>(agreement.algorithm));
  builder.setServersCount(agreement.servers_count);
  builder.setVerify(agreement.verify);
  auto nodes = builder.initNodes(static_cast<unsigned>(agreement.nodes.size()));
  for (unsigned i = 0; i < nodes.size(); ++i) {
    const AgreedNode& node = agreement.nodes[i];
    nodes[i].setName(node.name);
    nodes[i].setRanks({node.ranks.data(), node.ranks.size()});
    WriteAddresses(node.addresses, [&](unsigned count) { return nodes[i].initAddresses(count); });
  }
}

Result<AgreedNode> ReadNode(schema::AgreedNode::Reader reader) {
  Result<std::string> name = Name(reader.getName());
  if (!name) return name.error();
  if (reader.getRanks().size() > transport::kMembersMax) return Corrupt("too many ranks");
  Result<std::vector<std::string>> addresses = ReadAddresses(reader.getAddresses());
  if (!addresses) return addresses.error();
  AgreedNode node{
      .name = std::move(name).value(), .ranks = {}, .addresses = std::move(addresses).value()};
  for (const std::uint32_t rank : reader.getRanks()) node.ranks.push_back(rank);
  return node;
}

Result<Agreement> ReadAgreement(schema::Agreement::Reader reader) {
  Agreement agreement;
  Result<std::string> job = Name(reader.getJob());
  if (!job) return job.error();
  agreement.job = std::move(job).value();
  agreement.world_size = reader.getWorldSize();
  agreement.epoch = reader.getEpoch();
  agreement.key = reader.getKey();
  agreement.plan_version = reader.getPlanVersion();
  agreement.block_bytes = reader.getBlockBytes();
  if (!transport::IsAlgorithm(reader.getAlgorithm())) {
    return Corrupt(fmt::format("algorithm {}", reader.getAlgorithm()));
  }
  agreement.algorithm = static_cast<transport::Algorithm>(reader.getAlgorithm());
  agreement.servers_count = reader.getServersCount();
  agreement.verify = reader.getVerify();
  if (reader.getNodes().size() > transport::kNodesMax) return Corrupt("too many nodes");
  for (const schema::AgreedNode::Reader each : reader.getNodes()) {
    Result<AgreedNode> node = ReadNode(each);
    if (!node) return node.error();
    agreement.nodes.push_back(std::move(node).value());
  }
  return agreement;
}

}  // namespace

void WriteHello(schema::PeerHello::Builder hello, const NodeFacts& facts) {
  hello.setProtocolVersion(facts.protocol_version);
  hello.setProgram(facts.program);
  hello.setNode(facts.name);
  hello.setInstance(facts.instance);
  hello.setServer(facts.server);
  hello.setGpuLanes(facts.gpu_lanes);
  WriteAddresses(facts.addresses, [&](unsigned count) { return hello.initAddresses(count); });
}

Result<NodeFacts> ReadHello(schema::PeerHello::Reader hello) {
  Result<std::string> name = Name(hello.getNode());
  if (!name) return name.error();
  Result<std::vector<std::string>> addresses = ReadAddresses(hello.getAddresses());
  if (!addresses) return addresses.error();
  if (hello.getGpuLanes() > addresses->size()) {
    return Corrupt(
        fmt::format("{} lanes of GPUs among {}", hello.getGpuLanes(), addresses->size()));
  }
  return NodeFacts{.protocol_version = hello.getProtocolVersion(),
                   .program = Text(hello.getProgram(), kProgramMax),
                   .name = std::move(name).value(),
                   .instance = hello.getInstance(),
                   .server = hello.getServer(),
                   .addresses = std::move(addresses).value(),
                   .gpu_lanes = hello.getGpuLanes()};
}

namespace {

void Write(schema::PeerMessage::Builder builder, const JoinJob& join) {
  auto group = builder.initJoinJob();
  group.setName(join.name);
  group.setWorldSize(join.world_size);
  group.setUid(join.uid);
  group.setArchitecture(join.architecture);
}
void Write(schema::PeerMessage::Builder builder, const ReportBlockHashed& told) {
  auto group = builder.initReportBlockHashed();
  group.setPlanned(told.hash.name.planned);
  group.setNumber(told.hash.name.number);
  group.setBlock(told.hash.name.block);
  group.setHash(told.hash.hash);
}
void Write(schema::PeerMessage::Builder builder, const ReportRankAttached& seat) {
  auto group = builder.initReportRankAttached();
  group.setRank(seat.rank);
  group.setPid(seat.pid);
  group.setAfterEpoch(seat.after_epoch);
}
void Write(schema::PeerMessage::Builder builder, const ReportRankLost& lost) {
  auto group = builder.initReportRankLost();
  group.setRank(lost.rank);
  group.setCause(lost.cause);
  group.setExited(lost.exited);
}
void Write(schema::PeerMessage::Builder builder, const ReportRankLeft& end) {
  auto group = builder.initReportRankLeft();
  group.setRank(end.rank);
  group.setPosted(end.posted);
  group.setIterations(end.iterations);
}
void Write(schema::PeerMessage::Builder builder, const ReportJobFailed& broken) {
  auto group = builder.initReportJobFailed();
  group.setCode(static_cast<std::uint8_t>(broken.code));
  group.setCause(broken.cause);
}
void Write(schema::PeerMessage::Builder builder, const ForgetJob& /*forget*/) {
  builder.setForgetJob();
}
void Write(schema::PeerMessage::Builder builder, const JobOpened& opened) {
  auto refusal = builder.initJobOpened();
  refusal.setCode(static_cast<std::uint8_t>(opened.code));
  refusal.setText(opened.cause);
}
void Write(schema::PeerMessage::Builder builder, const JobMeasured& measured) {
  auto group = builder.initJobMeasured();
  group.initRefusal().setCode(static_cast<std::uint8_t>(measured.code));
  group.getRefusal().setText(measured.cause);
  WriteCosts(group.initCosts(static_cast<unsigned>(measured.costs.size())), measured.costs);
}
void Write(schema::PeerMessage::Builder builder, const JobStarted& started) {
  builder.initJobStarted().setHash(started.hash);
}
void Write(schema::PeerMessage::Builder builder, const AnnounceJobForming& waits) {
  auto group = builder.initAnnounceJobForming();
  group.setText(waits.text);
  group.setRefused(waits.refused);
}
void Write(schema::PeerMessage::Builder builder, const OpenJob& open) {
  auto group = builder.initOpenJob();
  group.setSelf(open.self);
  WriteAgreement(group.initAgreement(), open.agreement);
}
void Write(schema::PeerMessage::Builder builder, const MeasureJob& /*measure*/) {
  builder.setMeasureJob();
}
void Write(schema::PeerMessage::Builder builder, const StartJob& start) {
  auto group = builder.initStartJob();
  WriteCosts(group.initCosts(static_cast<unsigned>(start.costs.size())), start.costs);
  group.setHash(start.hash);
}
void Write(schema::PeerMessage::Builder builder, const AnnounceJobFailed& failure) {
  auto refusal = builder.initAnnounceJobFailed();
  refusal.setCode(static_cast<std::uint8_t>(failure.code));
  refusal.setText(failure.cause);
}
void Write(schema::PeerMessage::Builder builder, const AnnounceRankLeft& gone) {
  auto group = builder.initAnnounceRankLeft();
  group.setRank(gone.rank);
  group.setPosted(gone.posted);
  group.setIterations(gone.iterations);
  group.setCause(gone.cause);
}
void Write(schema::PeerMessage::Builder builder, const CloseJob& /*close*/) {
  builder.setCloseJob();
}
void Write(schema::PeerMessage::Builder builder, const Goodbye& goodbye) {
  builder.initGoodbye().setCause(goodbye.cause);
}

Result<PeerMessage> ReadJoin(std::uint32_t job, schema::PeerMessage::JoinJob::Reader join) {
  Result<std::string> name = Name(join.getName());
  if (!name) return name.error();
  if (join.getWorldSize() == 0 || join.getWorldSize() > transport::kMembersMax) {
    return Corrupt(fmt::format("a world of {} ranks", join.getWorldSize()));
  }
  return PeerMessage(JoinJob{.job = job,
                             .name = std::move(name).value(),
                             .world_size = join.getWorldSize(),
                             .uid = join.getUid(),
                             .architecture = Text(join.getArchitecture(), kProgramMax)});
}

Result<PeerMessage> ReadRankAttached(std::uint32_t job,
                                     schema::PeerMessage::ReportRankAttached::Reader seat) {
  if (seat.getAfterEpoch() >= kEpochMax) {
    return Corrupt(fmt::format("a rank after epoch {}", seat.getAfterEpoch()));
  }
  return PeerMessage(ReportRankAttached{.job = job,
                                        .rank = seat.getRank(),
                                        .pid = seat.getPid(),
                                        .after_epoch = seat.getAfterEpoch()});
}

Result<PeerMessage> ReadMeasured(std::uint32_t job,
                                 schema::PeerMessage::JobMeasured::Reader measured) {
  Result<std::vector<transport::CostLine>> costs = ReadCosts(measured.getCosts(), kLanesMax);
  if (!costs) return costs.error();
  return PeerMessage(JobMeasured{.job = job,
                                 .code = ReadCode(measured.getRefusal().getCode()),
                                 .cause = Text(measured.getRefusal().getText()),
                                 .costs = std::move(costs).value()});
}

Result<PeerMessage> ReadOpen(std::uint32_t job, schema::PeerMessage::OpenJob::Reader open) {
  Result<Agreement> agreement = ReadAgreement(open.getAgreement());
  if (!agreement) return agreement.error();
  return PeerMessage(
      OpenJob{.job = job, .self = open.getSelf(), .agreement = std::move(agreement).value()});
}

Result<PeerMessage> ReadStart(std::uint32_t job, schema::PeerMessage::StartJob::Reader start) {
  Result<std::vector<transport::CostLine>> costs = ReadCosts(start.getCosts(), kLanesMax);
  if (!costs) return costs.error();
  return PeerMessage(
      StartJob{.job = job, .costs = std::move(costs).value(), .hash = start.getHash()});
}

PeerMessage ReadTellHash(std::uint32_t job, schema::PeerMessage::ReportBlockHashed::Reader told) {
  return ReportBlockHashed{.job = job,
                           .hash = {.name = {.planned = told.getPlanned(),
                                             .number = told.getNumber(),
                                             .block = told.getBlock()},
                                    .hash = told.getHash()}};
}

Result<PeerMessage> ReadFromNode(std::uint32_t job, schema::PeerMessage::Reader reader) {
  switch (reader.which()) {
    case schema::PeerMessage::JOIN_JOB:
      return ReadJoin(job, reader.getJoinJob());
    case schema::PeerMessage::REPORT_RANK_ATTACHED:
      return ReadRankAttached(job, reader.getReportRankAttached());
    case schema::PeerMessage::REPORT_RANK_LOST:
      return PeerMessage(ReportRankLost{.job = job,
                                        .rank = reader.getReportRankLost().getRank(),
                                        .cause = Text(reader.getReportRankLost().getCause()),
                                        .exited = reader.getReportRankLost().getExited()});
    case schema::PeerMessage::REPORT_RANK_LEFT:
      return PeerMessage(ReportRankLeft{.job = job,
                                        .rank = reader.getReportRankLeft().getRank(),
                                        .posted = reader.getReportRankLeft().getPosted(),
                                        .iterations = reader.getReportRankLeft().getIterations()});
    case schema::PeerMessage::REPORT_JOB_FAILED:
      return PeerMessage(ReportJobFailed{.job = job,
                                         .code = ReadCode(reader.getReportJobFailed().getCode()),
                                         .cause = Text(reader.getReportJobFailed().getCause())});
    case schema::PeerMessage::FORGET_JOB:
      return PeerMessage(ForgetJob{job});
    case schema::PeerMessage::JOB_OPENED:
      return PeerMessage(JobOpened{.job = job,
                                   .code = ReadCode(reader.getJobOpened().getCode()),
                                   .cause = Text(reader.getJobOpened().getText())});
    case schema::PeerMessage::JOB_MEASURED:
      return ReadMeasured(job, reader.getJobMeasured());
    case schema::PeerMessage::JOB_STARTED:
      return PeerMessage(JobStarted{.job = job, .hash = reader.getJobStarted().getHash()});
    case schema::PeerMessage::REPORT_LAYOUT:
      return ReadLayout(job, reader.getReportLayout());
    case schema::PeerMessage::REPORT_TIMES_SEEN:
      return ReadTimes(job, reader.getReportTimesSeen());
    case schema::PeerMessage::REQUEST_POLICY:
      return ReadWish(job, reader.getRequestPolicy());
    case schema::PeerMessage::REPORT_PLAN_ACK:
      return ReadHold(job, reader.getReportPlanAck());
    case schema::PeerMessage::REQUEST_STEERING:
      return ReadWishSteering(job, reader.getRequestSteering());
    case schema::PeerMessage::REPORT_RANK_LATE:
      return ReadTellLate(job, reader.getReportRankLate());
    case schema::PeerMessage::REPORT_BLOCK_HASHED:
      return ReadTellHash(job, reader.getReportBlockHashed());
    default:
      return Corrupt("a message that this one does not know");
  }
}

}  // namespace

std::size_t WireBytes(const PeerMessage& message) {
  // Of messages that are not long, with what Cap'n Proto adds.
  std::size_t bytes = 2 * kTextMax;
  if (const auto* handed = std::get_if<ReportLayout>(&message)) {
    for (const LayoutTensor& tensor : handed->layout->tensors) bytes += tensor.name.size() + 48;
  } else if (const auto* told = std::get_if<ReportTimesSeen>(&message)) {
    bytes += 8 * (told->seen.times.release_s.size() + told->seen.times.forward_s.size());
  } else if (const auto* piece = std::get_if<PlanPiece>(&message)) {
    bytes += piece->text == nullptr ? 0 : piece->text->size();
  } else if (const auto* open = std::get_if<OpenJob>(&message)) {
    for (const AgreedNode& node : open->agreement.nodes) {
      bytes += 4 * node.ranks.size() + 128;
      for (const std::string& address : node.addresses) bytes += address.size() + 16;
    }
  }
  return bytes;
}

void WriteMessage(schema::PeerMessage::Builder builder, const PeerMessage& message) {
  std::visit(
      [&builder](const auto& each) {
        if constexpr (requires { each.job; }) builder.setJob(each.job);
        Write(builder, each);
      },
      message);
}

Result<PeerMessage> ReadMessage(schema::PeerMessage::Reader reader) {
  const std::uint32_t job = reader.getJob();
  switch (reader.which()) {
    case schema::PeerMessage::ANNOUNCE_JOB_FORMING:
      return PeerMessage(
          AnnounceJobForming{.job = job,
                             .text = Text(reader.getAnnounceJobForming().getText()),
                             .refused = reader.getAnnounceJobForming().getRefused()});
    case schema::PeerMessage::OPEN_JOB:
      return ReadOpen(job, reader.getOpenJob());
    case schema::PeerMessage::MEASURE_JOB:
      return PeerMessage(MeasureJob{job});
    case schema::PeerMessage::START_JOB:
      return ReadStart(job, reader.getStartJob());
    case schema::PeerMessage::ANNOUNCE_JOB_FAILED:
      return PeerMessage(
          AnnounceJobFailed{.job = job,
                            .code = ReadCode(reader.getAnnounceJobFailed().getCode()),
                            .cause = Text(reader.getAnnounceJobFailed().getText())});
    case schema::PeerMessage::ANNOUNCE_RANK_LEFT:
      return PeerMessage(
          AnnounceRankLeft{.job = job,
                           .rank = reader.getAnnounceRankLeft().getRank(),
                           .posted = reader.getAnnounceRankLeft().getPosted(),
                           .iterations = reader.getAnnounceRankLeft().getIterations(),
                           .cause = Text(reader.getAnnounceRankLeft().getCause())});
    case schema::PeerMessage::CLOSE_JOB:
      return PeerMessage(CloseJob{job});
    case schema::PeerMessage::PLAN_PIECE:
      return ReadPlan(job, reader.getPlanPiece());
    case schema::PeerMessage::ANNOUNCE_PLAN_SWITCH:
      return ReadSwitch(job, reader.getAnnouncePlanSwitch());
    case schema::PeerMessage::ANNOUNCE_STEERING:
      return ReadSteer(job, reader.getAnnounceSteering());
    case schema::PeerMessage::ANNOUNCE_RANK_LATE:
      return ReadHearLate(job, reader.getAnnounceRankLate());
    case schema::PeerMessage::GOODBYE:
      return PeerMessage(Goodbye{Text(reader.getGoodbye().getCause())});
    default:
      return ReadFromNode(job, reader);
  }
}

}  // namespace headrace::service
