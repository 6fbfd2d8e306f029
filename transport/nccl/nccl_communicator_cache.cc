#include "transport/nccl/nccl_communicator_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

std::string Doing(const std::vector<std::int8_t>& devices) {
  std::vector<int> numbers(devices.begin(), devices.end());
  return fmt::format("let NCCL form ranks on GPUs {}", fmt::join(numbers, ", "));
}

}  // namespace

Result<NcclGroup*> NcclCommunicatorCache::GroupFor(const Transfer& transfer, TimeNs now) {
  const NcclRankMap rank_map = RankMapOf(transfer);
  wanted_.clear();
  for (std::uint32_t local_rank = 0; local_rank < rank_map.local_ranks_count; ++local_rank) {
    wanted_.push_back(transfer.devices[rank_map.members[local_rank]]);
  }
  const auto known = std::ranges::find(known_, wanted_, &Known::devices);
  if (known != known_.end()) return Poll(known, now);
  // The queue has fewer pieces under way than there are groups, and uses the oldest no more.
  if (known_.size() == options_.groups_max)
    Retire(std::ranges::min_element(known_, {}, &Known::used));
  HR_CHECK(known_.size() < options_.groups_max, known_.size(), options_.groups_max);
  known_.push_back({.devices = wanted_, .group = Form(wanted_), .begun_ns = now, .used = ++uses_});
  return nullptr;
}

Result<NcclGroup*> NcclCommunicatorCache::Poll(std::list<Known>::iterator known, TimeNs now) {
  known->used = ++uses_;
  if (known->ready) return known->group.get();
  const Result<bool> formed = known->group->Poll();
  if (formed && *formed) {
    known->ready = true;
    return known->group.get();
  }
  if (formed && now - known->begun_ns < options_.form_timeout_ns) return nullptr;
  const Error error =
      formed ? Error(Code::kTimeout,
                     fmt::format("not done after {} s", options_.form_timeout_ns / kSecond))
             : formed.error();
  const std::string doing = Doing(known->devices);
  known->group->Abort();
  leaving_.push_back(std::move(known->group));
  known_.erase(known);
  return error.Within(doing);
}

std::unique_ptr<NcclGroup> NcclCommunicatorCache::Form(const std::vector<std::int8_t>& devices) {
  std::vector<NcclLocalRank> local_ranks;
  for (const std::int8_t device : devices) {
    const auto ordinal = static_cast<std::uint32_t>(device);
    HR_CHECK(ordinal < streams_.size(), ordinal, streams_.size());
    local_ranks.push_back({.context = &gpus_.context(device),
                           .stream = streams_[ordinal].get().thing,
                           .rank = static_cast<std::uint32_t>(local_ranks.size()),
                           .launch_stream = ordinal});
  }
  const auto count = static_cast<std::uint32_t>(local_ranks.size());
  return NcclGroup::Form(library_, std::move(local_ranks), count, std::nullopt, options_.ctas_max);
}

// What stands in its streams is still done: a group that finishes lets it.
void NcclCommunicatorCache::Retire(std::list<Known>::iterator known) {
  known->group->Finish();
  leaving_.push_back(std::move(known->group));
  known_.erase(known);
}

// The transfers have the cause; the next one for these GPUs forms a new group.
void NcclCommunicatorCache::Lost(NcclGroup& group, const Error&) {
  const auto known =
      std::ranges::find(known_, &group, [](const Known& each) { return each.group.get(); });
  if (known == known_.end()) return;
  leaving_.push_back(std::move(known->group));
  known_.erase(known);
}

void NcclCommunicatorCache::FinishAll() {
  while (!known_.empty()) {
    if (known_.front().ready) {
      Retire(known_.begin());
    } else {
      known_.pop_front();
    }
  }
}

bool NcclCommunicatorCache::Sweep(const NcclQueue& queue) {
  std::erase_if(leaving_, [&](const auto& group) { return group->ended() && !queue.Uses(*group); });
  return !leaving_.empty();
}

}  // namespace headrace::transport
