// Writes the inputs that fuzzing starts from: valid ones, made by the code that makes them in life,
// so that they follow every change of the formats.
//
//   seeds FOLDER   writes FOLDER/{record,dispatch,planner,sends,schema,peer,...}/*, a folder a
//   target
#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/codecs.h"
#include "ipc/base/collective.h"
#include "ipc/records.h"
#include "ipc/schema/client.capnp.h"
#include "ipc/schema/peer.capnp.h"
#include "service/peers/channel_hello.h"
#include "service/peers/peer_wire.h"
#include "tests/fuzz/message_act.h"
#include "transport/codec/codec.h"
#include "transport/codec/lossless.h"
#include "transport/exchange/message_tail.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own

std::string folder;  // NOLINT: set once in main

void Write(const std::string& name, const std::string& bytes) {
  const std::filesystem::path path = folder + "/" + name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string BytesOf(const ipc::Record& record) {
  return {reinterpret_cast<const char*>(&record), sizeof record};
}

std::string BytesOf(capnp::MessageBuilder& message) {
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

ipc::Record RecordOf(Collective kind, std::uint64_t sequence) {
  ipc::Record record;
  record.kind = static_cast<std::uint8_t>(kind);
  record.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  record.reduction = static_cast<std::uint8_t>(Reduction::kSum);
  record.count = kind == Collective::kBarrier ? 0 : 33;
  record.tensor = sequence % 2 == 0 ? 0 : ipc::kNoTensor;
  record.commit = sequence;
  return record;
}

// Seeds of the layout in record_fuzz.cc.
ipc::Record GradientOf(std::uint32_t index) {
  ipc::GradientRecord record;
  record.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  record.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
  record.flags = ipc::kRecordIsGradient;
  record.tensor = 2 + index;
  record.count = index == 0 ? 33 : 7;
  record.backward_ns = 1;
  record.posted_ns = 2;
  return std::bit_cast<ipc::Record>(record);
}

void WriteRecords() {
  std::string all;
  for (std::uint8_t kind = 1; IsCollective(kind); ++kind) {
    all += BytesOf(RecordOf(static_cast<Collective>(kind), kind));
  }
  ipc::Record send = RecordOf(ipc::kSend, 6);
  send.root = 1;
  send.tag = 7;
  ipc::Record receive = RecordOf(ipc::kReceive, 7);
  receive.root = ipc::kAnyRank;
  all += BytesOf(send) + BytesOf(receive);
  for (const Collective kind : {kGather, kScatter, kAllToAll}) {
    ipc::Record record = RecordOf(kind, 8);
    record.flags = ipc::kRecordHasParts;
    record.tag = 4096;
    all += BytesOf(record);
  }
  Write("record/ring", std::string(1, '\0') + all);
  Write("record/mended", std::string(1, '\1') + all);
  ipc::Record edge = RecordOf(Collective::kAllReduce, 1);
  edge.count = ~std::uint64_t{0} / 4;
  edge.offset = ~std::uint64_t{3};
  Write("record/edge", std::string(1, '\1') + BytesOf(edge) + all);
  std::string gradients;
  for (std::uint32_t i = 0; i < 2; ++i) gradients += BytesOf(GradientOf(i));
  Write("record/gradients", std::string(1, '\1') + gradients + all);
  // Parts of 10, 0 and 3 elements; their table stands behind the record.
  ipc::Record uneven = RecordOf(Collective::kReduceScatter, 1);
  uneven.flags = ipc::kRecordHasParts;
  uneven.count = 13;
  uneven.tag = 4096 + sizeof uneven;
  std::array<ipc::PartRow, 3> rows{{{.sent_offset = 0, .sent_count = 10},
                                    {.sent_offset = 10, .sent_count = 0},
                                    {.sent_offset = 10, .sent_count = 3}}};
  Write("record/uneven", std::string(1, '\1') + BytesOf(uneven) +
                             std::string(reinterpret_cast<const char*>(rows.data()), sizeof rows));
  // Rank 0's part goes to behind them.
  uneven.flags |= ipc::kRecordHasResult;
  rows[0].received_offset = 100;
  rows[0].received_count = 10;
  Write("record/result", std::string(1, '\1') + BytesOf(uneven) +
                             std::string(reinterpret_cast<const char*>(rows.data()), sizeof rows));
}

void WriteScripts() {
  using std::string_view_literals::operator""sv;
  // Both ranks post the same, all turn, both are lost.
  Write("sends/meet",
        std::string("\x00\x8a\x6e\x0c\x01\x00\x01\x0a\xf0\x61\x4c\x01\x01\xd0\x20"sv));
  Write("sends/end",
        std::string("\x6e\x0c\x02\x00\x62\x1c\x02\x00\x01\x0a\xe1\xd0\x30\x6e\x0c\x03\x00"sv));
  Write("dispatch/agree",
        std::string("\x00\x48\x01\x48\xe0\x00\x11\x01\x11\xe0\x00\xc9\x01\xc9\xe0"sv));
  Write("dispatch/messages",
        std::string(
            "\x70\x40\x71\x40\xe0\x70\x41\x71\x41\xe0\x70\x46\x71\x46\xe0\x70\x0f\x71\x40\xe0"sv));
  Write("dispatch/differ", std::string("\x00\x48\x01\x49\xe0\x00\x88\x01\x48\xe0"sv));
  Write("dispatch/lost", std::string("\x00\x48\x01\x48\xa0\xd9\x01\xe0\x00\x48\xe0"sv));
  Write("dispatch/late", std::string("\x00\x48\xa0\xf0\x70\x01\x48\xe0"sv));
  Write("dispatch/garbage", std::string("\x00\x48\xd0garbage!\xe0\x01\x48\xe0"sv));
  // Two iterations of three gradients, each rank in an order of its own; then one rank is lost.
  Write("dispatch/train", std::string("\x00\x01\x01\x03\x00\x02\x01\x01\x00\x03\xa0\xc0\x01\x02\xe0"
                                      "\x00\x02\x01\x01\x00\x03\x01\x02\xe0\xd9\x01\xe0"sv));
  Write("dispatch/record", "\x80" + BytesOf(RecordOf(Collective::kAllReduce, 1)) + "\x81" +
                               BytesOf(RecordOf(Collective::kAllReduce, 1)) + "\xe0");
}

// Numbers of problems in planner_fuzz.cc: every number means something there.
void WritePlanners() {
  constexpr std::size_t kNumbers = 1200;
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    std::string numbers;
    for (std::size_t i = 0; i < kNumbers; ++i)
      numbers.push_back(static_cast<char>(random() & 0xFFU));
    Write("planner/" + std::to_string(seed), numbers);
  }
}

// Seeds of the steps in forming_fuzz.cc.
void WriteForming() {
  using std::string_view_literals::operator""sv;
  // Open, measure, start, a plan and the switch to it, an iteration of both ranks, one leaves.
  const std::string honest(
      "\x00\x00\x01\x02\x03\x04\x06\x00\x06\x04\x06\x08\x06\x01\x06\x05\x06\x09\x07\x20"sv);
  Write("forming/honest", honest);
  Write("forming/twice", honest + std::string("\x00\x01\x02\x04"sv));
  // 0x80 spoils what is opened: its blocks, a rank that is there twice, one beyond the world.
  Write("forming/blocks", std::string("\x00\x80\x05\x02\0\0\0\0\0\0\x20\x01\x02"sv));
  Write("forming/twin", std::string("\x00\x80\x1a\0\0\0\0\0\0\0\0\x01\x02"sv));
  Write("forming/beyond", std::string("\x00\x80\x19\x4d\0\0\0\0\0\0\0\x01\x02"sv));
  Write("forming/early", std::string("\x00\x02\x01\x00"sv));
  // Two nodes join, are seated, open, measure, start, hand in layouts, hold a plan, tell times.
  const std::string led(
      "\x01\x00\x40\x01\x41\x02\x42\x03\x43\x04\x44\x05\x45\x08\x48"
      "\x06\x05\x46\x05\x08\x48\x09\x0a\x4a"sv);
  Write("forming/led", led);
  // Clients ask who is left: members 0 and 1 over two connections; another leader is tried; the
  // decision.
  Write("forming/asks",
        honest + std::string("\x08\x0c\x00\x00\x03\x00\x01\x0c\x00\x11\x03\x00\x01\x0f\x00"
                             "\x10\x00\x03\x01\x01\x00\x0d\x00\x01"sv));
  Write("forming/applies",
        honest + std::string("\x13\x0c\x00\x04\x03\x00\x01\x08\x12\x00\x03\x03\x01\x01"
                             "\x0c\x00\x01\x03\x00\x01\x10\x00\x03\x01\x01\x04\x09"sv));
  Write("forming/moves",
        honest + std::string("\x0e\x00\x0c\x00\xc0\x03\x00\x01\x15\x00\x00\x15\x01\x02"
                             "\x11\x00\x01\x0a\x20"sv));
  // Both nodes ask, of members 0 and 1; one is not known, and its time runs out.
  Write("forming/decided",
        led + std::string("\x10\x01\x03\x00\x01\x01\x01\x00\x50\x01\x03\x00\x01\x01\x01\x20"
                          "\x13\xff\xff"sv));
  Write("forming/grace",
        led + std::string("\x10\x01\x07\x00\x01\x07\x02\x00\x03\x52\x03\x01\x01\x01\x01"
                          "\x13\xff\xff\x51\x14\x15\x02\x16\x08\x02"sv));
  Write("forming/stranger", std::string("\x01\x00\x80\x00\x81\x00\x01\x01\x40\x41\x0e\x0f"sv));
}

void FillHello(schema::Hello::Builder hello) {
  hello.setProtocolVersion(schema::PROTOCOL_VERSION);
  hello.setProgram("seeds");
}

void FillRequest(schema::AttachRequest::Builder request) {
  request.setJob("seed");
  request.setRank(1);
  request.setWorldSize(2);
  request.setTimeoutMs(500);
}

void FillTensors(schema::Session::RegisterTensorsParams::Builder params) {
  auto tensors = params.initTensors(2);
  for (unsigned i = 0; i < tensors.size(); ++i) {
    tensors[i].setName(i == 0 ? "weight" : "bias");
    tensors[i].setOffset(i * 4096);
    tensors[i].setCount(1024);
    tensors[i].setDtype(static_cast<std::uint8_t>(DType::kFloat32));
  }
}

void WriteMessages() {
  capnp::MallocMessageBuilder hello;
  FillHello(hello.initRoot<schema::Hello>());
  Write("schema/hello", BytesOf(hello));
  capnp::MallocMessageBuilder request;
  FillRequest(request.initRoot<schema::AttachRequest>());
  Write("schema/request", BytesOf(request));
  capnp::MallocMessageBuilder tensors;
  FillTensors(tensors.initRoot<schema::Session::RegisterTensorsParams>());
  Write("schema/tensors", BytesOf(tensors));
}

// A question about the bootstrap capability.
std::string Bootstrap() {
  capnp::MallocMessageBuilder message;
  message.initRoot<capnp::rpc::Message>().initBootstrap().setQuestionId(0);
  return BytesOf(message);
}

// A call of Bootstrap on what the bootstrap will answer; `fill` writes the parameters.
template <typename Params, typename Fill>
std::string Call(std::uint32_t question, std::uint16_t method, Fill fill) {
  capnp::MallocMessageBuilder message;
  auto call = message.initRoot<capnp::rpc::Message>().initCall();
  call.setQuestionId(question);
  call.setInterfaceId(capnp::typeId<schema::Bootstrap>());
  call.setMethodId(method);
  call.initTarget().initPromisedAnswer().setQuestionId(0);
  fill(call.initParams().getContent().initAs<Params>());
  return BytesOf(message);
}

void WriteConversations() {
  const std::string admin = Call<schema::Bootstrap::AdminParams>(
      1, 1, [](schema::Bootstrap::AdminParams::Builder params) { FillHello(params.initHello()); });
  // Without capabilities for channel and doorbell: refused, after all the rest was read.
  const std::string attach = Call<schema::Bootstrap::AttachParams>(
      2, 0, [](schema::Bootstrap::AttachParams::Builder params) {
        FillHello(params.initHello());
        FillRequest(params.initRequest());
      });
  capnp::MallocMessageBuilder finish;
  finish.initRoot<capnp::rpc::Message>().initFinish().setQuestionId(1);
  Write("socket/bootstrap", Bootstrap());
  Write("socket/admin", Bootstrap() + admin + BytesOf(finish));
  Write("socket/attach", Bootstrap() + attach);
  Write("schema/bootstrap", Bootstrap());
  Write("schema/call", attach);
}

std::string BytesOf(const service::PeerMessage& message) {
  capnp::MallocMessageBuilder builder;
  service::WriteMessage(builder.initRoot<schema::PeerMessage>(), message);
  return BytesOf(builder);
}

service::Layout LayoutOf() {
  service::Layout layout;
  layout.reduction = Reduction::kAverage;
  layout.tensors = {{.name = "weight", .offset = 0, .count = 64},
                    {.name = "bias", .offset = 256, .count = 8, .dtype = DType::kBFloat16}};
  return layout;
}

service::OpenJob OpenOf() {
  service::OpenJob open{.job = 1, .self = 0, .agreement = {}};
  open.agreement.job = "train";
  open.agreement.world_size = 2;
  open.agreement.key = 9;
  open.agreement.nodes = {{.name = "b", .ranks = {0}, .addresses = {"B0"}},
                          {.name = "c", .ranks = {1}, .addresses = {"C0"}}};
  return open;
}

service::ReportTimesSeen TimesOf() {
  service::ReportTimesSeen told{.job = 1, .seen = {}};
  told.seen.times.iteration = 22;
  told.seen.times.release_s = {3e-3, 2e-3};
  told.seen.times.forward_s = {1e-3, 0};
  told.seen.times.iteration_s = 1e-2;
  told.seen.costs = {{.startup_s = 1e-5, .s_per_byte = 1e-9}};
  return told;
}

void WriteApplicants(const service::Membership& members) {
  Write("peer/ask_to_join",
        BytesOf(service::ReportQuorum{.job = 2,
                                      .name = "train",
                                      .uid = 0,
                                      .membership = members,
                                      .epoch = 0,
                                      .rules = {},
                                      .members = {{.member = service::kApplicantsFrom,
                                                   .state = service::MemberState::kJoins}}}));
  Write("peer/hear_members_wait", BytesOf(service::AnnounceMembersWait{.job = 1}));
}

void WritePeerMessages() {
  using namespace service;  // NOLINT: all of these are its messages
  const Steering weight{.kind = SteeringKind::kWeight, .value = 3, .uid = 1000, .node = "b"};
  const auto text = std::make_shared<const std::string>("headrace-plan/1\nversion 1\n");
  Write("peer/join", BytesOf(JoinJob{.job = 1, .name = "train", .world_size = 2, .uid = 1000}));
  Write("peer/seat", BytesOf(ReportRankAttached{.job = 1, .rank = 1, .pid = 77}));
  Write("peer/lose", BytesOf(ReportRankLost{.job = 1, .rank = 1, .cause = "exited or was killed"}));
  Write("peer/break",
        BytesOf(ReportJobFailed{.job = 1, .code = Code::kMismatch, .cause = "differ"}));
  Write("peer/measured", BytesOf(JobMeasured{.job = 1, .costs = {{1e-5, 1e-9}}}));
  Write("peer/layout", BytesOf(ReportLayout{.job = 1,
                                            .layout = std::make_shared<const Layout>(LayoutOf()),
                                            .policy = plan::Policy::kExact}));
  Write("peer/times", BytesOf(TimesOf()));
  Write("peer/policy_request", BytesOf(RequestPolicy{.job = 1, .policy = plan::Policy::kBsp}));
  Write("peer/hold", BytesOf(ReportPlanAck{.job = 1, .version = 1, .hash = 5, .iteration = 41}));
  Write("peer/open", BytesOf(OpenOf()));
  Write("peer/start", BytesOf(StartJob{.job = 1, .costs = {{1e-5, 1e-9}}, .hash = 5}));
  Write("peer/plan",
        BytesOf(PlanPiece{.job = 1, .version = 1, .index = 0, .last = true, .text = text}));
  Write("peer/switch",
        BytesOf(AnnouncePlanSwitch{.job = 1, .version = 1, .from_iteration = 1, .before_s = 0.5}));
  Write("peer/policy_request_steering", BytesOf(RequestSteering{.job = 1, .steering = weight}));
  Write("peer/steer", BytesOf(AnnounceSteering{.job = 1, .steering = weight}));
  Write("peer/tell_late", BytesOf(ReportRankLate{.job = 1, .text = "rank 1 is late"}));
  Write("peer/hear_late", BytesOf(AnnounceRankLate{.job = 1, .text = "rank 1 is late"}));
  const service::Membership members{.generation = 1, .members = {0, 2}};
  Write("peer/ask_quorum", BytesOf(service::ReportQuorum{.job = 1,
                                                         .name = "train",
                                                         .uid = 0,
                                                         .membership = members,
                                                         .epoch = 1,
                                                         .rules = {.min_world = 1, .grace_ms = 0},
                                                         .members = {{.member = 0}}}));
  WriteApplicants(members);
  Write("peer/leave_quorum", BytesOf(service::LeaveQuorum{.job = 1}));
  Write("peer/hear_quorum",
        BytesOf(service::AnnounceQuorum{
            .job = 1,
            .quorum = {.membership = members,
                       .epoch = 2,
                       .lost = {{.member = 1, .cause = "gone"}},
                       .admitted = {{.applicant = service::kApplicantsFrom, .member = 2}}}}));
  Write("peer/tell_hash", BytesOf(ReportBlockHashed{.job = 1, .hash = {{true, 400, 2}, 0x1234}}));
  capnp::MallocMessageBuilder hello;
  WriteHello(hello.initRoot<schema::PeerHello>(),
             {.protocol_version = schema::PEER_PROTOCOL_VERSION,
              .program = "headraced 0.1.0",
              .name = "b",
              .instance = 1,
              .addresses = {"B0"}});
  Write("peer/hello", BytesOf(hello));
  capnp::MallocMessageBuilder channel;
  WriteChannel(channel.initRoot<schema::PeerChannel>(),
               {.id = {1, 2, 3}, .resumes = true, .received = 7});
  Write("peer/channel", BytesOf(channel));
}

void WriteActs(int choice, const std::string& name,
               const std::vector<transport::MessageAct>& acts) {
  std::string script(1, static_cast<char>(choice));
  for (const transport::MessageAct& act : acts) {
    script.append(reinterpret_cast<const char*>(&act), sizeof act);
  }
  Write(name, script);
}

// Between nodes: both post, the other's message comes, and one more that was never asked for.
void WriteNodesMessages() {
  using transport::MessageAct;
  const auto honest =
      static_cast<std::uint8_t>(MessageAct::kKey | MessageAct::kPlan | MessageAct::kPosition |
                                MessageAct::kShape | MessageAct::kSender | MessageAct::kSize);
  const MessageAct inject{.kind = MessageAct::kInject, .honest = honest};
  const MessageAct post{.kind = MessageAct::kPost};
  const MessageAct post_b{.kind = MessageAct::kPost, .honest = 1};
  const MessageAct step{.kind = MessageAct::kStep, .count = 20};
  // The same over two rails: a message that came already, one of long after it, an acknowledgement
  // of what was not sent, and pings of the other wire and of none.
  std::vector<MessageAct> acts{post, post_b, step, inject, step, post, step, inject, step};
  const auto by_rail = [&](std::uint8_t flag, const transport::MessageHeader& header) {
    MessageAct act = inject;
    act.honest |= flag;
    act.header = header;
    act.size = 1;
    acts.insert(acts.begin() + 3, {act, step});
  };
  for (const int choice : {0, 1, 2, 3}) {
    if (choice == 2) {
      by_rail(MessageAct::kSequence, {.sequence = 1});
      by_rail(MessageAct::kSequence, {.sequence = 15, .acknowledged = 1});
      by_rail(MessageAct::kControl, {.operation_count = 1, .kind = 1, .acknowledged = 9});
      by_rail(MessageAct::kControl, {.position = 1, .operation_count = 1, .kind = 2});
      by_rail(MessageAct::kControl, {.position = 1, .operation_count = 3, .kind = 2});
    }
    const std::string rails = choice >= 2 ? "_by_rails" : "";
    WriteActs(choice, (choice % 2 == 0 ? "message/alone" : "message/with_server") + rails, acts);
  }
  // The second transfer crosses as two factors: both of the other node's come, and one again.
  MessageAct left = inject;
  left.header.position = 1;
  MessageAct right = left;
  right.honest &= static_cast<std::uint8_t>(~MessageAct::kPosition);
  right.header.position = 2;
  right.header.piece = 1;
  for (const int choice : {0, 1}) {
    WriteActs(choice, choice == 0 ? "message/factors" : "message/factors_with_server",
              {post, post_b, step, step, post, left, right, step, post_b, step, right, left, step});
  }
}

// A block and a half by each codec, behind the three bytes that choose.
void WriteEncodings() {
  constexpr std::size_t kCount = 386;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = static_cast<float>(i % 17) / static_cast<float>(1 + i % 97) - 0.5F;
  }
  std::vector<std::byte> bytes(2 * sizeof(float) * kCount);
  const auto write = [&](std::size_t number, const std::string& name, std::size_t size) {
    std::string input = {static_cast<char>(number), static_cast<char>(kCount / 5), '\0'};
    input.append(reinterpret_cast<const char*>(bytes.data()), size);
    Write("codec/" + name, input);
  };
  std::size_t number = 0;
  for (std::uint8_t kind = 1; kind < std::size(kCodecNames); ++kind) {
    const Codec codec(static_cast<Codec::Kind>(kind));
    if (!HasBlocks(codec)) continue;
    transport::Encode(codec, values.data(), nullptr, kCount, bytes.data());
    write(number++, std::string(kCodecNames[kind]), transport::EncodedSize(codec, kCount));
    // codec_fuzz.cc has this one twice, with two parameters.
    if (codec.kind == Codec::kTopK) ++number;
  }
  transport::LosslessWriter writer{.out = bytes.data(), .size_max = bytes.size()};
  transport::EncodeLossless(values.data(), kCount, writer);
  write(number, "lossless", writer.size);
  const transport::RunWalk whole(DType::kFloat32, kCount, {}, 0);
  write(number + 1, "tail",
        transport::WriteTail(7, whole, {.begin = 0, .count = kCount}, true, bytes.data()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  folder = argv[1];
  WriteRecords();
  WriteScripts();
  WritePlanners();
  WriteForming();
  WriteMessages();
  WriteConversations();
  WritePeerMessages();
  WriteNodesMessages();
  WriteEncodings();
  return 0;
}
