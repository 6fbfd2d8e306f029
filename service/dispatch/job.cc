#include "service/dispatch/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace headrace::service {

Job::Job(const SessionIdentity& identity, TimeNs now)
    : id_(identity.job),
      name_(identity.job_name),
      owner_uid_(identity.uid),
      epoch_(identity.epoch),
      opened_ns_(now),
      members_(identity.world_size),
      memory_(kOperationsMax * identity.world_size) {}

RankMask Job::all_ranks() const {
  return members_.size() == 64 ? ~RankMask{0} : (RankMask{1} << members_.size()) - 1;
}

std::uint32_t Job::attached() const {
  return static_cast<std::uint32_t>(
      std::count_if(members_.begin(), members_.end(),
                    [](const Member& member) { return member.session && !member.gone; }));
}

bool Job::HasSessions() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.session != nullptr; });
}

std::uint32_t Job::FirstMissing(const Operation& operation) const {
  return static_cast<std::uint32_t>(std::countr_one(operation.posted));
}

transport::Transfer Job::MakeTransfer(const Operation& operation) {
  const std::uint64_t sequence = operation.shape.sequence;
  transport::Transfer transfer{.token = operation.stage.token,
                               .kind = operation.shape.kind,
                               .dtype = operation.shape.dtype,
                               .reduction = operation.shape.reduction,
                               .root = operation.shape.root,
                               .count = operation.shape.count,
                               .members_count = world_size()};
  for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
    transfer.members[rank] = memory(sequence, rank);
  }
  return transfer;
}

std::string Job::DescribeRank(std::uint32_t rank) const {
  const Member& member = members_[rank];
  if (!member.session) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {})", rank, member.session->identity().pid);
}

std::string_view Job::TensorName(const Operation& operation) const {
  const Member& member = members_[operation.first_rank];
  if (!member.session) return {};
  const Tensor* tensor = member.session->FindTensor(operation.shape.tensor);
  return tensor != nullptr ? std::string_view(tensor->name) : std::string_view();
}

std::string Job::DescribeOperation(const Operation& operation) const {
  const std::string_view tensor = TensorName(operation);
  return fmt::format("operation {} [{}{}{}]", operation.shape.sequence, Describe(operation.shape),
                     tensor.empty() ? "" : ", ", tensor);
}

std::string Job::DescribeMismatch(const Operation& operation, std::uint32_t rank,
                                  const Posted& posted) const {
  return fmt::format(
      "{} posted {}, {} posted {} as operation {}: every rank must post the same operations in the "
      "same order",
      DescribeRank(operation.first_rank), Describe(operation.shape), DescribeRank(rank),
      Describe(posted), posted.sequence);
}

}  // namespace headrace::service
