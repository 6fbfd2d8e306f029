#include "tests/unit/transport/exchange_fleet.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "tests/support/loopback/reference.h"

namespace headrace::transport {

Fleet::Fleet(const FleetOptions& options)
    : options_(options),
      network_(std::make_unique<SimulatedNetwork>(options.network)),
      forgotten_(nodes_count()),
      completions_(nodes_count()) {
  for (std::uint32_t node = 0; node < nodes_count(); ++node) {
    wires_.push_back(MakeWire(node));
    residuals_.push_back(std::make_shared<ServedResiduals>(options.residuals_max));
    ExchangeOptions exchange = options.exchange;
    if (node < options.device_codecs.size()) exchange.device_codec = options.device_codecs[node];
    nodes_.push_back(std::make_unique<Exchange>(*wires_.back(), exchange, residuals_.back()));
  }
  if (options.opens_group) OpenGroup(1);
}

Fleet::~Fleet() {
  nodes_.clear();
  for (const std::span<std::byte> memory : pinned_) options_.unpin(memory);
}

Wire* Fleet::MakeWire(std::uint32_t node) {
  std::vector<Wire*> wires;
  for (std::uint32_t rail = 0; rail < options_.rails_count; ++rail) {
    wires.push_back(&network_->AddWire(RailName(node, rail)));
  }
  if (wires.size() == 1) return wires.front();
  rails_.push_back(std::make_unique<RailWire>(std::move(wires), 1000 + node));
  return rails_.back().get();
}

void Fleet::OpenGroup(std::uint32_t group) {
  GroupOptions options{.group = group,
                       .key = KeyOf(group),
                       .epoch = options_.epoch,
                       .plan_version = 5,
                       .members = {},
                       .servers_count = options_.servers_count,
                       .algorithm = options_.algorithm};
  for (std::uint32_t node = 0; node < nodes_count(); ++node) {
    options.members.push_back({.name = NameOf(node), .address = wires_[node]->address()});
  }
  for (std::uint32_t node = 0; node < nodes_count(); ++node) {
    options.self = node;
    const Status opened = nodes_[node]->OpenGroup(options);
    HR_CHECK(opened.ok(), opened.error().text());
  }
}

Transfer Fleet::Local(Transfer transfer, std::uint32_t node) {
  if (transfer.group == 0) transfer.group = 1;
  std::byte* const memory = transfer.members[node];
  transfer.members.fill(nullptr);
  transfer.members[node] = memory;
  if (node != transfer.root) transfer.output = nullptr;
  return transfer;
}

void Fleet::Post(std::uint32_t node, const Transfer& transfer) {
  const PostResult result = nodes_[node]->Post(Local(transfer, node), network_->now());
  HR_CHECK(result == PostResult::kAccepted, transfer.token);
}

void Fleet::PostEverywhere(const Transfer& transfer) {
  for (std::uint32_t node = 0; node < options_.data_count; ++node) Post(node, transfer);
}

bool Fleet::AnswerStaging() {
  for (std::uint32_t node = 0; node < nodes_count(); ++node) {
    if (forgotten_[node]) continue;
    std::vector<StagingRequest> requests;
    nodes_[node]->DrainStaging(requests);
    for (const StagingRequest& request : requests) staging_.push_back({node, request});
  }
  if (holds_staging_ || staging_.empty()) return false;
  for (const auto& [node, request] : std::exchange(staging_, {})) {
    Result<std::byte*> on_gpus(nullptr);
    if (request.pin) {
      on_gpus = options_.pin(request.memory);
      if (on_gpus) pinned_.push_back(request.memory);
    } else {
      options_.unpin(request.memory);
      std::erase_if(pinned_, [&request = request](const auto& memory) {
        return memory.data() == request.memory.data();
      });
    }
    nodes_[node]->SetStaging(request.group, on_gpus);
  }
  return true;
}

bool Fleet::Step() {
  bool worked = AnswerStaging();
  for (std::uint32_t node = 0; node < nodes_count(); ++node) {
    if (forgotten_[node]) continue;
    worked = nodes_[node]->DoWork(network_->now(), completions_[node]) || worked;
  }
  if (worked) return true;
  TimeNs due = network_->NextDue();
  for (std::uint32_t node = 0; node < nodes_count(); ++node) {
    if (!forgotten_[node]) due = std::min(due, nodes_[node]->NextLook());
  }
  if (due == kNever) return false;
  network_->AdvanceTo(due);
  return true;
}

void Fleet::RunToTheEnd() {
  constexpr std::uint64_t kStepsMax = 10'000'000;
  std::uint64_t steps = 0;
  while (Step()) HR_CHECK(++steps < kStepsMax);
}

bool Fleet::AllHaveEnded(std::size_t count) const {
  for (std::uint32_t node = 0; node < options_.data_count; ++node) {
    if (!forgotten_[node] && completions_[node].size() < count) return false;
  }
  return true;
}

void Fleet::ClearCompletions() {
  for (auto& completions : completions_) completions.clear();
}

FleetTransfer::FleetTransfer(Collective kind, DType dtype, Reduction reduction, std::uint64_t count,
                             std::uint32_t data_count, std::uint64_t seed)
    : members_(dtype, kind == Collective::kBarrier ? 0 : count, data_count),
      transfer_{.token = 100 + seed, .kind = kind, .reduction = reduction, .position = seed} {
  members_.Fill(seed);
  members_.Describe(transfer_);
  transfer_.root = static_cast<std::uint32_t>(seed % data_count);
  transfer_.output = transfer_.members[transfer_.root];
}

std::vector<std::vector<std::byte>> FleetTransfer::Expected() const {
  const Members copy = members_.Copy();
  Transfer transfer = transfer_;
  copy.Describe(transfer);
  transfer.output = transfer.members[transfer.root];
  ReferenceMove(transfer, 0, transfer.count);
  return copy.Contents();
}

void SumWithMessage(Fleet& fleet, std::span<float> values, Codec codec,
                    std::vector<std::byte> message, std::int8_t device) {
  Transfer transfer{.token = 1,
                    .kind = Collective::kAllReduce,
                    .dtype = DType::kFloat32,
                    .count = values.size(),
                    .position = 1,
                    .members_count = 2,
                    .codec = codec};
  transfer.members[0] = reinterpret_cast<std::byte*>(values.data());
  transfer.devices[0] = device;
  fleet.Post(0, transfer);
  fleet.network().Inject("a",
                         {.key = KeyOf(1),
                          .epoch = 3,
                          .plan_version = 5,
                          .position = 1,
                          .count = values.size(),
                          .kind = static_cast<std::uint8_t>(Collective::kAllReduce),
                          .dtype = static_cast<std::uint8_t>(DType::kFloat32),
                          .reduction = static_cast<std::uint8_t>(Reduction::kSum),
                          .sender = 1,
                          .codec = static_cast<std::uint8_t>(codec.kind)},
                         std::move(message));
  fleet.RunToTheEnd();
}

}  // namespace headrace::transport
