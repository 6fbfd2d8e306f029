// PROTOCOL.md says what the code does: its tables are read and compared, in both directions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/device_handle.h"
#include "ipc/base/error.h"
#include "ipc/base/steering.h"
#include "ipc/board_layout.h"
#include "ipc/channel.h"
#include "ipc/records.h"
#include "ipc/sealed_memory.h"
#include "tests/unit/ipc/layouts.h"

namespace headrace::ipc {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(std::string(SOURCE_FOLDER) + "/" + path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The document is in two files; the board has the second one.
std::string TheProtocol() {
  return ReadFile("ipc/PROTOCOL.md") + ReadFile("ipc/BOARD.md") + ReadFile("ipc/PEERS.md");
}

// What stands in back quotes, or the whole cell without its blanks.
std::string Unquoted(const std::string& cell) {
  const std::size_t begin = cell.find('`');
  if (begin != std::string::npos) return cell.substr(begin + 1, cell.rfind('`') - begin - 1);
  const std::size_t first = cell.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return cell.substr(first, cell.find_last_not_of(' ') - first + 1);
}

// The cells of "| a | b |"; empty for a line that is no row.
std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  if (line.empty() || line[0] != '|') return cells;
  std::istringstream rest(line.substr(1));
  for (std::string cell; std::getline(rest, cell, '|');) cells.push_back(Unquoted(cell));
  return cells;
}

std::optional<std::uint64_t> Number(const std::string& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 0);
  return *end == '\0' ? std::optional(value) : std::nullopt;
}

// "### `Name`, 123 bytes" begins a layout; its rows are "| offset | size | `field` | ...".
std::map<std::string, Layout> LayoutsOfDocument() {
  std::map<std::string, Layout> layouts;
  std::istringstream document(TheProtocol());
  Layout* current = nullptr;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("### `", 0) == 0) {
      current = &layouts[Unquoted(line)];
      current->size = std::strtoull(line.substr(line.find(',') + 1).c_str(), nullptr, 10);
    } else if (line.rfind('#', 0) == 0) {
      current = nullptr;
    }
    const std::vector<std::string> cells = Cells(line);
    if (current == nullptr || cells.size() < 4) continue;
    const auto offset = Number(cells[0]);
    const auto size = Number(cells[1]);
    if (offset && size) current->fields.push_back({*offset, *size, cells[2]});
  }
  return layouts;
}

// Rows "| `name` | number |..." anywhere in the document.
std::map<std::string, std::uint64_t> ConstantsOfDocument() {
  std::map<std::string, std::uint64_t> constants;
  std::istringstream document(TheProtocol());
  for (std::string line; std::getline(document, line);) {
    const std::vector<std::string> cells = Cells(line);
    if (cells.size() < 2 || line.rfind("| `", 0) != 0) continue;
    if (const auto value = Number(cells[1])) constants[cells[0]] = *value;
  }
  return constants;
}

std::map<std::string, Layout> ChannelLayoutsOfCode() {
  return {
      {"ChannelLayout",
       {sizeof(ChannelLayout),
        {FIELD(ChannelLayout, header), FIELD(ChannelLayout, words), FIELD(ChannelLayout, ready),
         FIELD(ChannelLayout, texts), FIELD(ChannelLayout, records)}}},
      {"ChannelHeader",
       {sizeof(ChannelHeader),
        {FIELD(ChannelHeader, magic), FIELD(ChannelHeader, version),
         FIELD(ChannelHeader, operations_max), FIELD(ChannelHeader, size),
         FIELD(ChannelHeader, reserved0), FIELD(ChannelHeader, service_sleeps),
         FIELD(ChannelHeader, client_waiters), FIELD(ChannelHeader, client_waited_ns),
         FIELD(ChannelHeader, client_waits_elsewhere)}}},
      {"Record",
       {sizeof(Record),
        {FIELD(Record, kind), FIELD(Record, dtype), FIELD(Record, reduction), FIELD(Record, flags),
         FIELD(Record, tensor), FIELD(Record, segment), FIELD(Record, root), FIELD(Record, offset),
         FIELD(Record, count), FIELD(Record, timeout_ms), FIELD(Record, parts),
         FIELD(Record, posted_ns), FIELD(Record, tag), FIELD(Record, commit)}}},
      {"GradientRecord",
       {sizeof(GradientRecord),
        {FIELD(GradientRecord, kind), FIELD(GradientRecord, dtype),
         FIELD(GradientRecord, reduction), FIELD(GradientRecord, flags),
         FIELD(GradientRecord, tensor), FIELD(GradientRecord, forward_ns),
         FIELD(GradientRecord, backward_ns), FIELD(GradientRecord, count),
         FIELD(GradientRecord, timeout_ms), FIELD(GradientRecord, contributors),
         FIELD(GradientRecord, posted_ns), FIELD(GradientRecord, waited_ns),
         FIELD(GradientRecord, commit)}}},
      {"PartRow",
       {sizeof(PartRow),
        {FIELD(PartRow, sent_offset), FIELD(PartRow, sent_count), FIELD(PartRow, received_offset),
         FIELD(PartRow, received_count)}}},
      {"ErrorText", {sizeof(ErrorText), {FIELD(ErrorText, sequence), FIELD(ErrorText, text)}}},
  };
}

template <typename Enum>
std::uint64_t Value(Enum value) {
  return static_cast<std::uint64_t>(value);
}

std::map<std::string, std::uint64_t> NumbersOfCode() {
  return {
      {"kChannelVersion", kChannelVersion},
      {"kBoardVersion", kBoardVersion},
      {"kPageSize", kPageSize},
      {"kOperationsMax", kOperationsMax},
      {"kErrorTextsMax", kErrorTextsMax},
      {"kErrorTextSize", kErrorTextSize},
      {"kChannelSize", kChannelSize},
      {"kChannelMagic", kChannelMagic},
      {"kSequenceMax", kSequenceMax},
      {"kNoTensor", kNoTensor},
      {"kAnyRank", kAnyRank},
      {"kSegmentSizeMax", kSegmentSizeMax},
      {"kBoardMagic", kBoardMagic},
      {"kJobRowsMax", kJobRowsMax},
      {"kRankRowsMax", kRankRowsMax},
      {"kQueueRowsMax", kQueueRowsMax},
      {"kLaneRowsMax", kLaneRowsMax},
      {"kEventRowsMax", kEventRowsMax},
      {"kPlanRowsMax", kPlanRowsMax},
      {"kPlanBlockRowsMax", kPlanBlockRowsMax},
      {"kShareRowsMax", kShareRowsMax},
      {"kFlightJobsMax", kFlightJobsMax},
      {"kFlightRowsMax", kFlightRowsMax},
      {"kPassRowsMax", kPassRowsMax},
      {"kFlightRanksMax", kFlightRanksMax},
      {"kFlightStagesMax", kFlightStagesMax},
      {"kGpuRowsMax", kGpuRowsMax},
      {"kPeerRowsMax", kPeerRowsMax},
      {"kServedRowsMax", kServedRowsMax},
      {"kGradientTimeMax", kGradientTimeMax},
      {"kUserRowsMax", kUserRowsMax},
      {"kCodeCounts", kCodeCounts},
      {"kRecordIsGradient", kRecordIsGradient},
      {"kRecordAwaitsWord", kRecordAwaitsWord},
      {"kRecordHasParts", kRecordHasParts},
      {"kRecordFollowsGradients", kRecordFollowsGradients},
      {"kRecordHasResult", kRecordHasResult},
      {"kDeviceMemorySizeMax", kDeviceMemorySizeMax},
      {"kDevicePiecesMax", kDevicePiecesMax},
      {"kWeightMax", kWeightMax},
      {"kPriorityMax", kPriorityMax},
      {"kLimitMin", kLimitMin},
      {"kLimitMax", kLimitMax},
  };
}

std::map<std::string, std::uint64_t> EnumeratorsOfCode() {
  return {
      {"kOk", Value(Code::kOk)},
      {"kInvalidArgument", Value(Code::kInvalidArgument)},
      {"kNotFound", Value(Code::kNotFound)},
      {"kAlreadyExists", Value(Code::kAlreadyExists)},
      {"kPermissionDenied", Value(Code::kPermissionDenied)},
      {"kVersionMismatch", Value(Code::kVersionMismatch)},
      {"kUnavailable", Value(Code::kUnavailable)},
      {"kBusy", Value(Code::kBusy)},
      {"kTimeout", Value(Code::kTimeout)},
      {"kMismatch", Value(Code::kMismatch)},
      {"kPeerLost", Value(Code::kPeerLost)},
      {"kCorrupt", Value(Code::kCorrupt)},
      {"kExhausted", Value(Code::kExhausted)},
      {"kCancelled", Value(Code::kCancelled)},
      {"kInternal", Value(Code::kInternal)},
      {"kAllReduce", Value(Collective::kAllReduce)},
      {"kBroadcast", Value(Collective::kBroadcast)},
      {"kReduceScatter", Value(Collective::kReduceScatter)},
      {"kAllGather", Value(Collective::kAllGather)},
      {"kBarrier", Value(Collective::kBarrier)},
      {"kReduce", Value(Collective::kReduce)},
      {"kGather", Value(kGather)},
      {"kScatter", Value(kScatter)},
      {"kAllToAll", Value(kAllToAll)},
      {"kSend", Value(kSend)},
      {"kReceive", Value(kReceive)},
      {"kFloat32", Value(DType::kFloat32)},
      {"kFloat64", Value(DType::kFloat64)},
      {"kFloat16", Value(DType::kFloat16)},
      {"kBFloat16", Value(DType::kBFloat16)},
      {"kInt32", Value(DType::kInt32)},
      {"kInt64", Value(DType::kInt64)},
      {"kUInt8", Value(DType::kUInt8)},
      {"kSum", Value(Reduction::kSum)},
      {"kAverage", Value(Reduction::kAverage)},
      {"kMin", Value(Reduction::kMin)},
      {"kMax", Value(Reduction::kMax)},
      {"kProduct", Value(Reduction::kProduct)},
      {"kPosixFds", Value(DeviceHandleKind::kPosixFds)},
      {"kLegacyIpc", Value(DeviceHandleKind::kLegacyIpc)},
      {"kPause", Value(SteeringKind::kPause)},
      {"kResume", Value(SteeringKind::kResume)},
      {"kDrain", Value(SteeringKind::kDrain)},
      {"kCancel", Value(SteeringKind::kCancel)},
      {"kWeight", Value(SteeringKind::kWeight)},
      {"kPriority", Value(SteeringKind::kPriority)},
      {"kLimit", Value(SteeringKind::kLimit)},
      {"kEvict", Value(SteeringKind::kEvict)},
      {"kSends", Value(SteeringKind::kSends)},
      {"kCompress", Value(SteeringKind::kCompress)},
  };
}

std::map<std::string, std::uint64_t> StatesOfCode() {
  return {
      {"ServiceState::kStarting", Value(ServiceState::kStarting)},
      {"ServiceState::kRunning", Value(ServiceState::kRunning)},
      {"ServiceState::kDraining", Value(ServiceState::kDraining)},
      {"ServiceState::kStopped", Value(ServiceState::kStopped)},
      {"JobState::kGathering", Value(JobState::kGathering)},
      {"JobState::kRunning", Value(JobState::kRunning)},
      {"JobState::kFailed", Value(JobState::kFailed)},
      {"StageState::kGathering", Value(StageState::kGathering)},
      {"StageState::kWaiting", Value(StageState::kWaiting)},
      {"StageState::kMoving", Value(StageState::kMoving)},
      {"WaitReason::kNone", Value(WaitReason::kNone)},
      {"WaitReason::kRankNotReady", Value(WaitReason::kRankNotReady)},
      {"WaitReason::kRankNotAttached", Value(WaitReason::kRankNotAttached)},
      {"WaitReason::kNoCredit", Value(WaitReason::kNoCredit)},
      {"WaitReason::kBehindBlock", Value(WaitReason::kBehindBlock)},
      {"WaitReason::kBehindJob", Value(WaitReason::kBehindJob)},
      {"WaitReason::kNodesNotReady", Value(WaitReason::kNodesNotReady)},
      {"WaitReason::kNoPlan", Value(WaitReason::kNoPlan)},
      {"WaitReason::kPeer", Value(WaitReason::kPeer)},
      {"WaitReason::kPaused", Value(WaitReason::kPaused)},
      {"WaitReason::kRateLimit", Value(WaitReason::kRateLimit)},
      {"WaitReason::kInterleaved", Value(WaitReason::kInterleaved)},
      {"WaitReason::kGpuNotReady", Value(WaitReason::kGpuNotReady)},
      {"WaitReason::kInFlight", Value(WaitReason::kInFlight)},
      {"WaitReason::kIteration", Value(WaitReason::kIteration)},
      {"WaitReason::kLaneFull", Value(WaitReason::kLaneFull)},
      {"WaitReason::kNoReceive", Value(WaitReason::kNoReceive)},
      {"WaitReason::kNoSend", Value(WaitReason::kNoSend)},
      {"WaitReason::kNoRoom", Value(WaitReason::kNoRoom)},
      {"WaitReason::kPlanSwitch", Value(WaitReason::kPlanSwitch)},
  };
}

std::map<std::string, std::uint64_t> ConstantsOfCode() {
  std::map<std::string, std::uint64_t> constants = NumbersOfCode();
  constants.merge(EnumeratorsOfCode());
  constants.merge(StatesOfCode());
  return constants;
}

// What this test may not include, because it needs kj or lies in an unnamed namespace: the file
// and the text that must stand in it.
struct Elsewhere {
  const char* name;
  std::uint64_t value;
  const char* file;
  const char* text;
};
constexpr Elsewhere kElsewhere[] = {
    {"schema::PROTOCOL_VERSION", 5, "ipc/schema/client.capnp", "protocolVersion :UInt32 = 5;"},
    {"kDescriptorsPerMessageMax", 253, "service/rpc/listener.cc",
     "kDescriptorsPerMessageMax = kDevicePiecesMax;"},
    {"kMessageWordsMax", 4U << 20U, "service/rpc/listener.cc",
     "kMessageWordsMax = std::uint64_t{4} << 20;"},
    {"kNestingMax", 16, "service/rpc/listener.cc", "kNestingMax = 16;"},
    {"kCallsMax", 32, "service/loop/bounded_network.h", "kCallsMax = 32;"},
    {"kUnreadBytesMax", 1U << 20U, "service/loop/bounded_network.h",
     "kUnreadBytesMax = std::size_t{1} << 20;"},
    {"kStraysMax", 64, "service/loop/bounded_network.h", "kStraysMax = 64;"},
    {"kStraysPerCall", 16, "service/loop/bounded_network.h", "kStraysPerCall = 16;"},
    {"kMessagesPerSecond", 5000, "service/rpc/listener.h", "kMessagesPerSecond = 5000;"},
    {"kMessagesPerAttach", 50, "service/rpc/bootstrap.cc", "kMessagesPerAttach = 50;"},
    {"kMessagesPerQuorum", 10, "service/rpc/bootstrap.cc", "kMessagesPerQuorum = 10;"},
    {"kMessagesBurst", 10000, "service/rpc/listener.h", "kMessagesBurst = 10'000;"},
    {"kBytesPerMessage", 4096, "service/loop/bounded_network.h", "kBytesPerMessage = 4096;"},
    {"kEarlyMessageBytesMax", 65536, "service/rpc/bounded_stream.h",
     "kEarlyMessageBytesMax = 65536;"},
    {"kMessageTime", 10, "service/rpc/bounded_stream.h", "kMessageTime = 10 * kj::SECONDS;"},
    {"kIdleTimeWithoutSession", 60, "service/rpc/bounded_stream.h",
     "kIdleTimeWithoutSession = 60 * kj::SECONDS;"},
    {"kArrivingBytesMax", 256U << 20U, "service/accounts/arrivals.h",
     "kArrivingBytesMax = std::uint64_t{256} << 20;"},
    {"kJobNameMax", 63, "service/accounts/rank_table.h", "kJobNameMax = 63;"},
    {"kMembersMax", 64, "transport/transport.h", "kMembersMax = 64;"},
    {"kSegmentsMax", 256, "service/session/session.h", "kSegmentsMax = 256;"},
    {"kTensorsMax", 1U << 18U, "service/session/session.h", "kTensorsMax = std::size_t{1} << 18;"},
    {"kTensorNameMax", 255, "service/accounts/memory_accounting.cc", "kTensorNameMax = 255;"},
    {"kTimeoutMsMax", 24 * 3600 * 1000, "service/dispatch/intake/record_checks.h",
     "kTimeoutMsMax = 24 * 3600 * 1000;"},
    {"schema::PEER_PROTOCOL_VERSION", 17, "ipc/schema/peer.capnp",
     "peerProtocolVersion :UInt32 = 17;"},
    {"kHelloTimeout", 5, "service/peers/peer_link.h", "kHelloTimeout = 5 * kj::SECONDS;"},
    {"kStrangersMax", 64, "service/peers/peer_listener.h", "kStrangersMax = 64;"},
    {"kPeerConnectionsMax", 256, "service/peers/peer_listener.h", "kPeerConnectionsMax = 256;"},
    {"kPeerMessageWordsMax", 1U << 20U, "service/peers/peer_link.h",
     "kPeerMessageWordsMax = std::uint64_t{1} << 20;"},
    {"kMessagesPerCallMax", 16, "service/peers/peer_link.h", "kMessagesPerCallMax = 16;"},
    {"kBytesPerCallMax", 256U << 10U, "service/peers/peer_link.h",
     "kBytesPerCallMax = std::size_t{256} << 10;"},
    {"kUnsentMax", 16384, "service/peers/unsent_messages.h", "kUnsentMax = 16384;"},
    {"kUnsentBytesMax", 67'108'864, "service/peers/unsent_messages.h",
     "kUnsentBytesMax = std::size_t{64} << 20;"},
    {"kBreaksMax", 8, "service/peers/peer_channel.h", "kBreaksMax = 8;"},
    {"kLinkGraceMax", 250, "service/peers/peer_channel.h", "kLinkGraceMax = 250 * kMillisecond;"},
    {"kReachesMax", 8, "service/peers/peer_listener.h", "kReachesMax = 8;"},
    {"kRailsConfiguredMax", 8, "service/config/config_address.h", "kRailsConfiguredMax = 8;"},
    {"kDialedMax", 256, "service/peers/peers.cc", "kDialedMax = 256;"},
    {"kLanesMax", 16, "service/peers/peer_wire.h", "kLanesMax = 16;"},
    {"kLaneAddressMax", 16384, "service/cluster/agreement.h", "kLaneAddressMax = 16384;"},
    {"kNodesMax", 64, "transport/network.h", "kNodesMax = 64;"},
    {"kServedRunsMax", 255, "transport/network.h", "kServedRunsMax = 255;"},
    {"kAskedMax", 32, "service/peers/job_settings.h", "kAskedMax = 32;"},
    {"kLateReportsMax", 4, "service/cluster/led_jobs.h", "kLateReportsMax = 4;"},
    {"kLateEventsMax", 16, "service/cluster/followed_jobs.h", "kLateEventsMax = 16;"},
    {"kJobsLedMax", 256, "service/cluster/led_jobs.h", "kJobsLedMax = 256;"},
    {"kJobsOfNodeMax", 64, "service/cluster/led_jobs.h", "kJobsOfNodeMax = 64;"},
    {"kPlacedJobsMax", 256, "service/cluster/job_directory.h", "kPlacedJobsMax = 256;"},
    {"kFormerLeadersMax", 4, "service/cluster/job_directory.h", "kFormerLeadersMax = 4;"},
    {"kPlaceAddressMax", 262, "service/session/job_place.h", "kPlaceAddressMax = 262;"},
    {"kQuorumsRememberedMax", 64, "service/cluster/led_quorums.h", "kQuorumsRememberedMax = 64;"},
    {"kQuorumStallMaxMs", 86'400'000, "service/session/quorum.h",
     "kQuorumStallMaxMs = 86'400'000;"},
    {"kQuorumGraceMaxMs", 3'600'000, "service/session/quorum.h", "kQuorumGraceMaxMs = 3'600'000;"},
    {"kNoticeBytesMax", 72U << 10U, "transport/network.h",
     "kNoticeBytesMax = std::size_t{72} << 10;"},
    {"kNoticesWindow", 32, "transport/exchange/notices.h", "kNoticesWindow = 32;"},
    {"kSendDataMax", 64U << 10U, "service/session/send_notices.h",
     "kSendDataMax = std::size_t{64} << 10;"},
    {"kSendDataOpenMax", 1U << 20U, "service/session/send_notices.h",
     "kSendDataOpenMax = std::size_t{1} << 20;"},
    {"kUnmetMax", 4, "transport/exchange/point_to_point.h", "kUnmetMax = 4;"},
    {"kSendCauseMax", 4U << 10U, "service/session/send_notices.h",
     "kSendCauseMax = std::size_t{4} << 10;"},
    {"kSendBytesMax", 1099511627776, "service/session/send_notices.h",
     "kSendBytesMax = std::uint64_t{1} << 40;"},
    {"kJobsServedMax", 256, "service/cluster/followed_jobs.h", "kJobsServedMax = 256;"},
    {"kBlockBytesMin", 64, "service/session/nodes.h", "kBlockBytesMin = 64;"},
    {"kBlockBytesMax", 1U << 30U, "service/session/nodes.h",
     "kBlockBytesMax = std::uint64_t{1} << 30;"},
    {"kLayoutTensorsMax", 768, "ipc/layout_limits.h", "kLayoutTensorsMax = 768;"},
    {"kPlanTextMax", 4U << 20U, "service/cluster/plan_text.h",
     "kPlanTextMax = std::size_t{4} << 20U;"},
    {"kPlanPieceMax", 128U << 10U, "service/cluster/plan_text.h",
     "kPlanPieceMax = std::size_t{128} << 10U;"},
    {"kSwitchSlack", 8, "service/peers/messages.h", "kSwitchSlack = 8;"},
};

TEST(Protocol, DocumentAndCodeHaveTheSameLayouts) {
  const auto document = LayoutsOfDocument();
  auto code = ChannelLayoutsOfCode();
  code.merge(BoardLayoutsOfCode());
  ASSERT_EQ(document.size(), code.size());
  for (const auto& [name, layout] : document) {
    ASSERT_TRUE(code.contains(name)) << name;
    EXPECT_EQ(layout.size, code[name].size) << name;
    std::vector<Field> fields = layout.fields;
    std::erase_if(fields, [](const Field& field) { return field.name == "-"; });
    EXPECT_EQ(fields, code[name].fields) << name;
  }
}

TEST(Protocol, DocumentLeavesNoByteOut) {
  for (const auto& [name, layout] : LayoutsOfDocument()) {
    std::size_t end = 0;
    for (const Field& field : layout.fields) {
      EXPECT_EQ(field.offset, end) << name << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, layout.size) << name;
  }
}

TEST(Protocol, DocumentAndCodeHaveTheSameConstants) {
  auto code = ConstantsOfCode();
  for (const Elsewhere& constant : kElsewhere) {
    EXPECT_NE(ReadFile(constant.file).find(constant.text), std::string::npos)
        << constant.file << " does not say " << constant.text;
    code[constant.name] = constant.value;
  }
  EXPECT_EQ(ConstantsOfDocument(), code);
}

TEST(Protocol, DocumentHasTheSizesOfAllElementTypes) {
  std::istringstream document(TheProtocol());
  int found = 0;
  for (std::string line; std::getline(document, line);) {
    const std::vector<std::string> cells = Cells(line);
    if (cells.size() < 3 || !Number(cells[1]) || !Number(cells[2])) continue;
    for (std::uint8_t dtype = 1; IsDType(dtype); ++dtype) {
      std::string name = "k" + std::string(Name(static_cast<DType>(dtype)));
      std::string lower = cells[0];
      std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
      if (lower != name) continue;
      EXPECT_EQ(*Number(cells[2]), SizeOf(static_cast<DType>(dtype))) << cells[0];
      ++found;
    }
  }
  EXPECT_EQ(found, 7);
}

}  // namespace
}  // namespace headrace::ipc
