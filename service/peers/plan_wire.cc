#include "service/peers/plan_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ipc/base/foreign_text.h"
#include "service/cluster/layouts.h"
#include "service/peers/wire_limits.h"

namespace headrace::service {
namespace {

constexpr std::size_t kTensorNameMax = 255;  // more of a name is cut

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

// Nothing for 0, which stands for no policy.
Result<std::optional<plan::Policy>> ReadPolicy(std::uint8_t number) {
  if (number == 0) return std::optional<plan::Policy>();
  for (const plan::Policy policy : plan::kPolicies) {
    if (static_cast<std::uint8_t>(policy) == number) return std::optional(policy);
  }
  return Corrupt(fmt::format("policy {}", number));
}

void WriteSeconds(capnp::List<double>::Builder list, const std::vector<double>& seconds) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, seconds[i]);
}

Result<std::vector<double>> ReadSeconds(capnp::List<double>::Reader list) {
  if (list.size() > kLayoutTensorsMax) {
    return Corrupt(fmt::format("times of {} tensors", list.size()));
  }
  std::vector<double> seconds;
  for (const double each : list) seconds.push_back(each);
  if (!std::all_of(seconds.begin(), seconds.end(), IsTime)) {
    return Corrupt("a time of a tensor that is none");
  }
  return seconds;
}

}  // namespace

void WriteCosts(capnp::List<schema::CostLine>::Builder list,
                const std::vector<transport::CostLine>& costs) {
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setStartupS(costs[i].startup_s);
    list[i].setSPerByte(costs[i].s_per_byte);
  }
}

Result<std::vector<transport::CostLine>> ReadCosts(capnp::List<schema::CostLine>::Reader list,
                                                   std::size_t lanes_max) {
  if (list.size() > lanes_max) return Corrupt(fmt::format("costs of {} lanes", list.size()));
  std::vector<transport::CostLine> costs;
  for (const schema::CostLine::Reader line : list) {
    const transport::CostLine cost{.startup_s = line.getStartupS(),
                                   .s_per_byte = line.getSPerByte()};
    if (!IsCost(cost)) return Corrupt("a cost that is no time");
    costs.push_back(cost);
  }
  return costs;
}

void Write(schema::PeerMessage::Builder builder, const ReportLayout& handed) {
  auto group = builder.initReportLayout();
  group.setPolicy(handed.policy ? static_cast<std::uint8_t>(*handed.policy) : 0);
  auto layout = group.initLayout();
  layout.setDtype(static_cast<std::uint8_t>(handed.layout->dtype));
  layout.setReduction(static_cast<std::uint8_t>(handed.layout->reduction));
  layout.setNamesHash(handed.layout->names_hash);
  const std::vector<LayoutTensor>& tensors = handed.layout->tensors;
  auto list = layout.initTensors(static_cast<unsigned>(tensors.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setName(tensors[i].name);
    list[i].setOffset(tensors[i].offset);
    list[i].setCount(tensors[i].count);
  }
}

Result<PeerMessage> ReadLayout(std::uint32_t job,
                               schema::PeerMessage::ReportLayout::Reader reader) {
  const Result<std::optional<plan::Policy>> policy = ReadPolicy(reader.getPolicy());
  if (!policy) return policy.error();
  const auto tensors = reader.getLayout().getTensors();
  // Before reading: a list of empty structs announces millions in a few bytes.
  if (tensors.size() > kLayoutTensorsMax) {
    return Corrupt(fmt::format("a layout of {} tensors", tensors.size()));
  }
  auto layout = std::make_shared<Layout>();
  layout->dtype = static_cast<DType>(reader.getLayout().getDtype());
  layout->reduction = static_cast<Reduction>(reader.getLayout().getReduction());
  layout->names_hash = reader.getLayout().getNamesHash();
  for (const schema::LayoutTensor::Reader tensor : tensors) {
    const auto name = tensor.getName();
    layout->tensors.push_back({.name = Printable({name.begin(), name.size()}, kTensorNameMax),
                               .offset = tensor.getOffset(),
                               .count = tensor.getCount()});
  }
  if (Status status = CheckLayout(*layout); !status) {
    return Corrupt("a layout that is none: " + status.error().text());
  }
  return PeerMessage(ReportLayout{.job = job, .layout = std::move(layout), .policy = *policy});
}

void Write(schema::PeerMessage::Builder builder, const ReportTimesSeen& told) {
  auto group = builder.initReportTimesSeen();
  const NodeTimes& times = told.seen.times;
  group.setIteration(times.iteration);
  group.setIterationS(times.iteration_s);
  group.setRunningS(times.running_s);
  WriteSeconds(group.initReleaseS(static_cast<unsigned>(times.release_s.size())), times.release_s);
  WriteSeconds(group.initForwardS(static_cast<unsigned>(times.forward_s.size())), times.forward_s);
  WriteCosts(group.initCosts(static_cast<unsigned>(told.seen.costs.size())), told.seen.costs);
}

Result<PeerMessage> ReadTimes(std::uint32_t job,
                              schema::PeerMessage::ReportTimesSeen::Reader reader) {
  ReportTimesSeen told{.job = job, .seen = {}};
  told.seen.times.iteration = reader.getIteration();
  told.seen.times.iteration_s = reader.getIterationS();
  told.seen.times.running_s = reader.getRunningS();
  if (!IsTime(told.seen.times.iteration_s) || !IsTime(told.seen.times.running_s)) {
    return Corrupt("a time of an iteration that is none");
  }
  Result<std::vector<double>> release_s = ReadSeconds(reader.getReleaseS());
  if (!release_s) return release_s.error();
  Result<std::vector<double>> forward_s = ReadSeconds(reader.getForwardS());
  if (!forward_s) return forward_s.error();
  Result<std::vector<transport::CostLine>> costs = ReadCosts(reader.getCosts(), kLanesMax + 1);
  if (!costs) return costs.error();
  told.seen.times.release_s = std::move(release_s).value();
  told.seen.times.forward_s = std::move(forward_s).value();
  told.seen.costs = std::move(costs).value();
  return PeerMessage(std::move(told));
}

void Write(schema::PeerMessage::Builder builder, const RequestPolicy& wish) {
  builder.initRequestPolicy().setPolicy(static_cast<std::uint8_t>(wish.policy));
}

Result<PeerMessage> ReadWish(std::uint32_t job, schema::PeerMessage::RequestPolicy::Reader reader) {
  const Result<std::optional<plan::Policy>> policy = ReadPolicy(reader.getPolicy());
  if (!policy) return policy.error();
  if (!*policy) return Corrupt("a request for no policy");
  return PeerMessage(RequestPolicy{.job = job, .policy = **policy});
}

void Write(schema::PeerMessage::Builder builder, const ReportPlanAck& held) {
  auto group = builder.initReportPlanAck();
  group.setVersion(held.version);
  group.setHash(held.hash);
  group.setIteration(held.iteration);
}

Result<PeerMessage> ReadHold(std::uint32_t job, schema::PeerMessage::ReportPlanAck::Reader reader) {
  // Later iterations are named by adding to it.
  if (reader.getIteration() > UINT64_MAX / 2) return Corrupt("an iteration beyond all");
  return PeerMessage(ReportPlanAck{.job = job,
                                   .version = reader.getVersion(),
                                   .hash = reader.getHash(),
                                   .iteration = reader.getIteration()});
}

void Write(schema::PeerMessage::Builder builder, const PlanPiece& piece) {
  auto group = builder.initPlanPiece();
  group.setVersion(piece.version);
  group.setIndex(piece.index);
  group.setLast(piece.last);
  if (piece.text == nullptr) return;
  group.setText({reinterpret_cast<const kj::byte*>(piece.text->data()), piece.text->size()});
}

Result<PeerMessage> ReadPlan(std::uint32_t job, schema::PeerMessage::PlanPiece::Reader reader) {
  const auto text = reader.getText();
  if (text.size() > kPlanPieceMax) {
    return Corrupt(fmt::format("a piece of a plan of {} bytes", text.size()));
  }
  return PeerMessage(PlanPiece{.job = job,
                               .version = reader.getVersion(),
                               .index = reader.getIndex(),
                               .last = reader.getLast(),
                               .text = std::make_shared<const std::string>(
                                   reinterpret_cast<const char*>(text.begin()), text.size())});
}

void Write(schema::PeerMessage::Builder builder, const AnnouncePlanSwitch& change) {
  auto group = builder.initAnnouncePlanSwitch();
  group.setVersion(change.version);
  group.setFromIteration(change.from_iteration);
  group.setBeforeS(change.before_s);
}

Result<PeerMessage> ReadSwitch(std::uint32_t job,
                               schema::PeerMessage::AnnouncePlanSwitch::Reader reader) {
  if (!IsTime(reader.getBeforeS())) return Corrupt("a time of an iteration that is none");
  return PeerMessage(AnnouncePlanSwitch{.job = job,
                                        .version = reader.getVersion(),
                                        .from_iteration = reader.getFromIteration(),
                                        .before_s = reader.getBeforeS()});
}

}  // namespace headrace::service
