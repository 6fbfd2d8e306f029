#include "service/peers/served_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace headrace::service {
namespace {

std::uint64_t MillionthsOf(const transport::ServedResiduals::Use& use) {
  if (use.sum_squares <= 0) return 0;
  return static_cast<std::uint64_t>(
      std::min(std::sqrt(use.residual_squares / use.sum_squares), 1e6) * 1e6);
}

}  // namespace

void ServedRows::Show(const FollowedJobs::Jobs& jobs) {
  if (residuals_ == nullptr || slots_.empty()) return;
  std::vector<ipc::ServedRow> rows;
  for (const auto& [number, job] : jobs) {
    if (rows.size() == slots_.size()) break;
    // It has ranks here or no links, or is there to end a job whose rank was refused here.
    if (job.id.value != 0 || job.group == 0 || job.refused) continue;
    const transport::ServedResiduals::Use use = residuals_->UseOf(job.group);
    ipc::ServedRow& row = rows.emplace_back();
    row.in_use = 1;
    row.world_size = job.world_size;
    row.encoded_bytes = use.encoded_bytes;
    row.kept_bytes = use.kept_bytes;
    row.residual_millionths = MillionthsOf(use);
    ipc::SetText(row.job, job.name);
    ipc::SetText(row.leader, job.leader);
  }
  const std::size_t in_use = rows.size();
  rows.resize(std::max(in_use, shown_.size()));
  shown_.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::memcmp(&rows[i], &shown_[i], sizeof rows[i]) != 0) ipc::WriteRow(slots_[i], rows[i]);
  }
  rows.resize(in_use);
  shown_ = std::move(rows);
}

}  // namespace headrace::service
