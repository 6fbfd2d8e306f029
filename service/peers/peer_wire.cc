#include "service/peers/peer_wire.h"

#include <fmt/format.h>

#include "ipc/base/foreign_text.h"
#include "service/accounts/roster.h"
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

void WriteRoster(schema::Roster::Builder roster, const Agreement& agreement) {
  roster.setJob(agreement.job);
  roster.setWorldSize(agreement.world_size);
  roster.setEpoch(agreement.epoch);
  roster.setKey(agreement.key);
  roster.setPlanVersion(agreement.plan_version);
  roster.setBlockBytes(agreement.block_bytes);
  roster.setAlgorithm(static_cast<std::uint8_t>(agreement.algorithm));
  roster.setServersCount(agreement.servers_count);
  roster.setVerify(agreement.verify);
  auto nodes = roster.initNodes(static_cast<unsigned>(agreement.nodes.size()));
  for (unsigned i = 0; i < nodes.size(); ++i) {
    const AgreedNode& node = agreement.nodes[i];
    nodes[i].setName(node.name);
    nodes[i].setRanks({node.ranks.data(), node.ranks.size()});
    WriteAddresses(node.addresses, [&](unsigned count) { return nodes[i].initAddresses(count); });
  }
}

Result<AgreedNode> ReadNode(schema::PeerNode::Reader reader) {
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

Result<Agreement> ReadRoster(schema::Roster::Reader reader) {
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
  for (const schema::PeerNode::Reader each : reader.getNodes()) {
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
  auto group = builder.initJoin();
  group.setName(join.name);
  group.setWorldSize(join.world_size);
  group.setUid(join.uid);
  group.setArchitecture(join.architecture);
}
void Write(schema::PeerMessage::Builder builder, const ReportBlockHash& told) {
  auto group = builder.initTellHash();
  group.setPlanned(told.hash.name.planned);
  group.setNumber(told.hash.name.number);
  group.setBlock(told.hash.name.block);
  group.setHash(told.hash.hash);
}
void Write(schema::PeerMessage::Builder builder, const SeatRank& seat) {
  auto group = builder.initSeatRank();
  group.setRank(seat.rank);
  group.setPid(seat.pid);
  group.setAfterEpoch(seat.after_epoch);
}
void Write(schema::PeerMessage::Builder builder, const ReportRankLost& lost) {
  auto group = builder.initLoseRank();
  group.setRank(lost.rank);
  group.setCause(lost.cause);
  group.setExited(lost.exited);
}
void Write(schema::PeerMessage::Builder builder, const ReportRankLeft& end) {
  auto group = builder.initEndRank();
  group.setRank(end.rank);
  group.setPosted(end.posted);
  group.setIterations(end.iterations);
}
void Write(schema::PeerMessage::Builder builder, const ReportJobFailed& broken) {
  auto group = builder.initBreak();
  group.setCode(static_cast<std::uint8_t>(broken.code));
  group.setCause(broken.cause);
}
void Write(schema::PeerMessage::Builder builder, const ForgetJob& /*forget*/) {
  builder.setForget();
}
void Write(schema::PeerMessage::Builder builder, const JobOpened& opened) {
  auto refusal = builder.initOpened();
  refusal.setCode(static_cast<std::uint8_t>(opened.code));
  refusal.setText(opened.cause);
}
void Write(schema::PeerMessage::Builder builder, const JobMeasured& measured) {
  auto group = builder.initMeasured();
  group.initRefusal().setCode(static_cast<std::uint8_t>(measured.code));
  group.getRefusal().setText(measured.cause);
  WriteCosts(group.initCosts(static_cast<unsigned>(measured.costs.size())), measured.costs);
}
void Write(schema::PeerMessage::Builder builder, const JobStarted& started) {
  builder.initStarted().setHash(started.hash);
}
void Write(schema::PeerMessage::Builder builder, const AnnounceWaits& waits) {
  auto group = builder.initWaits();
  group.setText(waits.text);
  group.setRefused(waits.refused);
}
void Write(schema::PeerMessage::Builder builder, const OpenJob& open) {
  auto group = builder.initOpen();
  group.setSelf(open.self);
  WriteRoster(group.initRoster(), open.agreement);
}
void Write(schema::PeerMessage::Builder builder, const MeasureJob& /*measure*/) {
  builder.setMeasure();
}
void Write(schema::PeerMessage::Builder builder, const StartJob& start) {
  auto group = builder.initStart();
  WriteCosts(group.initCosts(static_cast<unsigned>(start.costs.size())), start.costs);
  group.setHash(start.hash);
}
void Write(schema::PeerMessage::Builder builder, const AnnounceJobFailed& failure) {
  auto refusal = builder.initFail();
  refusal.setCode(static_cast<std::uint8_t>(failure.code));
  refusal.setText(failure.cause);
}
void Write(schema::PeerMessage::Builder builder, const AnnounceRankLeft& gone) {
  auto group = builder.initRankGone();
  group.setRank(gone.rank);
  group.setPosted(gone.posted);
  group.setIterations(gone.iterations);
  group.setCause(gone.cause);
}
void Write(schema::PeerMessage::Builder builder, const CloseJob& /*close*/) { builder.setClose(); }
void Write(schema::PeerMessage::Builder builder, const Goodbye& goodbye) {
  builder.initGoodbye().setCause(goodbye.cause);
}

Result<PeerMessage> ReadJoin(std::uint32_t job, schema::PeerMessage::Join::Reader join) {
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

Result<PeerMessage> ReadSeat(std::uint32_t job, schema::PeerMessage::SeatRank::Reader seat) {
  if (seat.getAfterEpoch() >= kEpochMax) {
    return Corrupt(fmt::format("a rank after epoch {}", seat.getAfterEpoch()));
  }
  return PeerMessage(SeatRank{.job = job,
                              .rank = seat.getRank(),
                              .pid = seat.getPid(),
                              .after_epoch = seat.getAfterEpoch()});
}

Result<PeerMessage> ReadMeasured(std::uint32_t job,
                                 schema::PeerMessage::Measured::Reader measured) {
  Result<std::vector<transport::CostLine>> costs = ReadCosts(measured.getCosts(), kLanesMax);
  if (!costs) return costs.error();
  return PeerMessage(JobMeasured{.job = job,
                                 .code = ReadCode(measured.getRefusal().getCode()),
                                 .cause = Text(measured.getRefusal().getText()),
                                 .costs = std::move(costs).value()});
}

Result<PeerMessage> ReadOpen(std::uint32_t job, schema::PeerMessage::Open::Reader open) {
  Result<Agreement> agreement = ReadRoster(open.getRoster());
  if (!agreement) return agreement.error();
  return PeerMessage(
      OpenJob{.job = job, .self = open.getSelf(), .agreement = std::move(agreement).value()});
}

Result<PeerMessage> ReadStart(std::uint32_t job, schema::PeerMessage::Start::Reader start) {
  Result<std::vector<transport::CostLine>> costs = ReadCosts(start.getCosts(), kLanesMax);
  if (!costs) return costs.error();
  return PeerMessage(
      StartJob{.job = job, .costs = std::move(costs).value(), .hash = start.getHash()});
}

PeerMessage ReadTellHash(std::uint32_t job, schema::PeerMessage::TellHash::Reader told) {
  return ReportBlockHash{.job = job,
                         .hash = {.name = {.planned = told.getPlanned(),
                                           .number = told.getNumber(),
                                           .block = told.getBlock()},
                                  .hash = told.getHash()}};
}

Result<PeerMessage> ReadFromNode(std::uint32_t job, schema::PeerMessage::Reader reader) {
  switch (reader.which()) {
    case schema::PeerMessage::JOIN:
      return ReadJoin(job, reader.getJoin());
    case schema::PeerMessage::SEAT_RANK:
      return ReadSeat(job, reader.getSeatRank());
    case schema::PeerMessage::LOSE_RANK:
      return PeerMessage(ReportRankLost{.job = job,
                                        .rank = reader.getLoseRank().getRank(),
                                        .cause = Text(reader.getLoseRank().getCause()),
                                        .exited = reader.getLoseRank().getExited()});
    case schema::PeerMessage::END_RANK:
      return PeerMessage(ReportRankLeft{.job = job,
                                        .rank = reader.getEndRank().getRank(),
                                        .posted = reader.getEndRank().getPosted(),
                                        .iterations = reader.getEndRank().getIterations()});
    case schema::PeerMessage::BREAK:
      return PeerMessage(ReportJobFailed{.job = job,
                                         .code = ReadCode(reader.getBreak().getCode()),
                                         .cause = Text(reader.getBreak().getCause())});
    case schema::PeerMessage::FORGET:
      return PeerMessage(ForgetJob{job});
    case schema::PeerMessage::OPENED:
      return PeerMessage(JobOpened{.job = job,
                                   .code = ReadCode(reader.getOpened().getCode()),
                                   .cause = Text(reader.getOpened().getText())});
    case schema::PeerMessage::MEASURED:
      return ReadMeasured(job, reader.getMeasured());
    case schema::PeerMessage::STARTED:
      return PeerMessage(JobStarted{.job = job, .hash = reader.getStarted().getHash()});
    case schema::PeerMessage::LAYOUT:
      return ReadLayout(job, reader.getLayout());
    case schema::PeerMessage::TIMES:
      return ReadTimes(job, reader.getTimes());
    case schema::PeerMessage::WISH:
      return ReadWish(job, reader.getWish());
    case schema::PeerMessage::HOLD:
      return ReadHold(job, reader.getHold());
    case schema::PeerMessage::WISH_STEERING:
      return ReadWishSteering(job, reader.getWishSteering());
    case schema::PeerMessage::TELL_LATE:
      return ReadTellLate(job, reader.getTellLate());
    case schema::PeerMessage::TELL_HASH:
      return ReadTellHash(job, reader.getTellHash());
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
  } else if (const auto* told = std::get_if<ReportTimes>(&message)) {
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
    case schema::PeerMessage::WAITS:
      return PeerMessage(AnnounceWaits{.job = job,
                                       .text = Text(reader.getWaits().getText()),
                                       .refused = reader.getWaits().getRefused()});
    case schema::PeerMessage::OPEN:
      return ReadOpen(job, reader.getOpen());
    case schema::PeerMessage::MEASURE:
      return PeerMessage(MeasureJob{job});
    case schema::PeerMessage::START:
      return ReadStart(job, reader.getStart());
    case schema::PeerMessage::FAIL:
      return PeerMessage(AnnounceJobFailed{.job = job,
                                           .code = ReadCode(reader.getFail().getCode()),
                                           .cause = Text(reader.getFail().getText())});
    case schema::PeerMessage::RANK_GONE:
      return PeerMessage(AnnounceRankLeft{.job = job,
                                          .rank = reader.getRankGone().getRank(),
                                          .posted = reader.getRankGone().getPosted(),
                                          .iterations = reader.getRankGone().getIterations(),
                                          .cause = Text(reader.getRankGone().getCause())});
    case schema::PeerMessage::CLOSE:
      return PeerMessage(CloseJob{job});
    case schema::PeerMessage::PLAN:
      return ReadPlan(job, reader.getPlan());
    case schema::PeerMessage::SWITCH:
      return ReadSwitch(job, reader.getSwitch());
    case schema::PeerMessage::STEER:
      return ReadSteer(job, reader.getSteer());
    case schema::PeerMessage::HEAR_LATE:
      return ReadHearLate(job, reader.getHearLate());
    case schema::PeerMessage::GOODBYE:
      return PeerMessage(Goodbye{Text(reader.getGoodbye().getCause())});
    default:
      return ReadFromNode(job, reader);
  }
}

}  // namespace headrace::service
