#include "tests/unit/service/dispatch/planned.h"

#include <bit>
#include <string>
#include <utility>

namespace headrace::support {

std::shared_ptr<const service::Layout> PackedLayout(const std::vector<std::uint64_t>& counts,
                                                    Reduction reduction) {
  service::Layout layout{.reduction = reduction, .tensors = {}};
  std::uint64_t offset = 0;
  for (const std::uint64_t count : counts) {
    const std::string name = "g" + std::to_string(layout.tensors.size());
    layout.tensors.push_back({.name = name, .offset = offset, .count = count});
    offset += count * sizeof(float);
  }
  return std::make_shared<const service::Layout>(std::move(layout));
}

std::shared_ptr<const plan::Plan> PlanOf(const Blocks& blocks, std::uint32_t version,
                                         bool barrier) {
  plan::Plan plan{.version = version, .barrier = barrier, .made_for = {}, .blocks = {}};
  for (const auto& pieces : blocks) {
    plan::PlannedBlock block;
    for (const Piece& piece : pieces) {
      block.ranges.push_back({.tensor = piece.tensor,
                              .offset_bytes = piece.begin * sizeof(float),
                              .bytes = piece.count * sizeof(float)});
      block.bytes += piece.count * sizeof(float);
    }
    plan.blocks.push_back(std::move(block));
  }
  return std::make_shared<const plan::Plan>(std::move(plan));
}

std::shared_ptr<const plan::Plan> HalvesOf(const Blocks& blocks, std::uint32_t version) {
  plan::Plan plan = *PlanOf(blocks, version);
  std::vector<plan::PlannedBlock> gathers(plan.blocks.rbegin(), plan.blocks.rend());
  for (plan::PlannedBlock& block : plan.blocks) block.kind = Collective::kReduceScatter;
  for (plan::PlannedBlock& block : gathers) block.kind = Collective::kAllGather;
  plan.blocks.insert(plan.blocks.end(), gathers.begin(), gathers.end());
  return std::make_shared<const plan::Plan>(std::move(plan));
}

void HandIn(HandDrivenNode& node, ClientEnd& client,
            const std::shared_ptr<const service::Layout>& layout,
            const service::ResidualsPlace& residuals) {
  for (std::uint32_t id = 0; id < layout->tensors.size(); ++id) {
    const service::LayoutTensor& tensor = layout->tensors[id];
    node.AddTensor(client, TensorId{id},
                   {.name = tensor.name,
                    .segment = SegmentId{0},
                    .offset = tensor.offset,
                    .count = tensor.count,
                    .dtype = tensor.dtype,
                    .order = id});
  }
  node.Send(service::SetLayout{client.id(), TensorId{0}, layout, residuals});
}

void Adopt(HandDrivenNode& node, JobId job, const std::shared_ptr<const plan::Plan>& plan,
           std::uint64_t from_iteration, std::uint64_t iterations_before) {
  node.Send(service::PlanOffer{.job = job, .plan = plan, .hash = plan->version});
  node.Send(service::PlanSwitch{.job = job,
                                .version = plan->version,
                                .from_iteration = from_iteration,
                                .iterations_before = iterations_before});
}

ipc::GradientRecord GradientOf(const service::Layout& layout, std::uint32_t tensor) {
  ipc::GradientRecord record;
  record.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(layout.tensors[tensor].dtype);
  record.reduction = static_cast<std::uint8_t>(layout.reduction);
  record.flags = ipc::kRecordIsGradient;
  record.tensor = tensor;
  record.count = layout.tensors.at(tensor).count;
  return record;
}

std::uint64_t PostGradient(ClientEnd& client, const ipc::GradientRecord& record) {
  return client.Post(std::bit_cast<ipc::Record>(record));
}

std::uint64_t PostGradient(ClientEnd& client, const service::Layout& layout, std::uint32_t tensor) {
  return PostGradient(client, GradientOf(layout, tensor));
}

}  // namespace headrace::support
