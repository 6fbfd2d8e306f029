#include "tests/sim/elastic_books.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "tests/support/loopback/reference.h"

namespace headrace::sim {
namespace {

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 29;
}

std::uint64_t MixAll(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<std::size_t>(8, bytes.size()))) {
    std::uint64_t value = bytes.size();
    std::memcpy(&value, bytes.data(), std::min<std::size_t>(8, bytes.size()));
    hash = Mix(hash, value);
  }
  return hash;
}

template <typename Number>
Number NumberAt(const std::vector<std::byte>& bytes, std::size_t index) {
  Number number{};
  std::memcpy(&number, bytes.data() + index * sizeof number, sizeof number);
  return number;
}

double ValueAt(DType dtype, const std::vector<std::byte>& bytes, std::size_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return NumberAt<float>(bytes, index);
    case DType::kFloat64:
      return NumberAt<double>(bytes, index);
    case DType::kFloat16:
      return transport::DecodeFloat16(NumberAt<std::uint16_t>(bytes, index));
    case DType::kBFloat16:
      return transport::DecodeBFloat16(NumberAt<std::uint16_t>(bytes, index));
    default:
      return 0;  // no gradient is of integers
  }
}

// One rounding to that type, as a share of the value.
double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1p-53;
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

}  // namespace

ElasticBooks::ElasticBooks(const Rules& rules, Model model)
    : rules_(rules), model_(std::move(model)) {
  for (std::uint32_t rank = 0; rank < rules_.world_size; ++rank) processes_[rank] = rank;
}

Planned ElasticBooks::PlannedOf(std::uint32_t tensor) const {
  return sim::PlannedOf(layout(), tensor, rules_.values);
}

const std::vector<std::byte>& ElasticBooks::GradientOf(std::uint32_t process,
                                                       std::uint64_t iteration,
                                                       std::uint32_t tensor) {
  const std::uint64_t made = iteration % kGradientsMade;
  std::vector<std::byte>& bytes = gradients_[{process, tensor, made}];
  if (!bytes.empty()) return bytes;
  const Planned planned = PlannedOf(tensor);
  bytes.resize(planned.Bytes());
  Dice dice(Mix(Mix(Mix(rules_.seed, process), made), tensor));
  FillElements(planned, rules_.values, bytes, dice);
  return bytes;
}

std::uint32_t ElasticBooks::AddContributors(std::vector<std::uint32_t> processes) {
  std::ranges::sort(processes);
  const auto found = std::ranges::find(contributors_, processes);
  const auto place = static_cast<std::uint32_t>(found - contributors_.begin());
  if (found == contributors_.end()) contributors_.push_back(std::move(processes));
  return place + 1;
}

void ElasticBooks::OnAsked(std::uint32_t process, const service::AskQuorum& ask) {
  if (ask.role != service::MemberRole::kMember) return;
  processes_[ask.member] = process;
  asking_.insert(ask.member);
}

std::optional<std::string> ElasticBooks::OnDecided(std::uint32_t process, service::MemberRole role,
                                                   const service::Membership& before,
                                                   const service::Quorum& quorum, TimeNs now) {
  const service::Membership& told = quorum.membership;
  if (!told.RankOf(quorum.own)) return "a process is told of others' membership";
  if (told.members.size() < rules_.min_world) return "fewer go on than may";
  if (role == service::MemberRole::kMember && told.generation <= before.generation) {
    return fmt::format("member {} of generation {} is told of generation {}", quorum.own,
                       before.generation, told.generation);
  }
  if (role != service::MemberRole::kMember) {
    const auto holder = processes_.try_emplace(quorum.own, process).first;
    if (holder->second != process) return fmt::format("two processes are member {}", quorum.own);
    asking_.insert(quorum.own);
  }
  std::set<std::uint32_t>& spares = spares_[told.generation];
  if (role == service::MemberRole::kSpare) spares.insert(quorum.own);
  if (rules_.is_majority && spares.size() > quorum.lost.size()) {
    return fmt::format("generation {} has {} spares for {} lost ranks", told.generation,
                       spares.size(), quorum.lost.size());
  }
  return CheckDecision(process, quorum, now);
}

// Whoever goes on asked for it, and was not known to be gone.
std::optional<std::string> ElasticBooks::CheckDecision(std::uint32_t process,
                                                       const service::Quorum& quorum, TimeNs now) {
  const service::Membership& told = quorum.membership;
  const auto known = decided_.find(told.generation);
  if (known != decided_.end() && known->second == told) return std::nullopt;
  decided_.insert_or_assign(told.generation, told);
  for (const std::uint32_t member : told.members) {
    const bool is_new = member >= service::Quorum::FirstNew(told.generation);
    if (!is_new && !asking_.contains(member)) {
      return fmt::format("member {} is in generation {}, and never asked for it", member,
                         told.generation);
    }
    const auto holder = processes_.find(member);
    if (holder == processes_.end()) continue;  // who joins, and was not told yet
    const auto gone = gone_ns_.find(holder->second);
    if (gone == gone_ns_.end() || now - gone->second <= rules_.noticed_within_ns) continue;
    return fmt::format("process {} is told that member {} goes on, which was lost {:.3f} s ago",
                       process, member, static_cast<double>(now - gone->second) / kSecond);
  }
  return std::nullopt;
}

std::optional<std::string> ElasticBooks::OnMet(const Meeting& met) {
  asking_.erase(met.member);
  const service::Membership& told = met.membership;
  const auto [found, is_new] =
      formed_.try_emplace(met.key, Formed{.membership = told, .epoch = met.epoch});
  Formed& formed = found->second;
  if (told.members != formed.membership.members || met.epoch != formed.epoch) {
    return fmt::format("epoch {} has two mappings of ranks: {} and {}", met.epoch,
                       fmt::join(told.members, " "), fmt::join(formed.membership.members, " "));
  }
  if (told.RankOf(met.member) != met.rank) return "a rank is not its member's place";
  if (formed.processes.try_emplace(met.rank, met.process).first->second != met.process) {
    return fmt::format("two processes are rank {}", met.rank);
  }
  if (met.nodes != nullptr) {
    const service::JobNode& node = met.nodes->nodes[service::NodeOf(*met.nodes, met.rank)];
    if (node.name != met.node) {
      return fmt::format("rank {} is said to be on node {}, and is on node {}", met.rank, node.name,
                         met.node);
    }
  }
  std::uint32_t& last = last_epochs_[met.process];
  if (met.epoch <= last) {
    return fmt::format("process {} is in epoch {} after epoch {}", met.process, met.epoch, last);
  }
  last = met.epoch;
  if (is_new) Count(met);
  return rules_.is_majority ? CheckLine(met, formed) : std::nullopt;
}

// With a majority each epoch is that of one job, and no member comes back that was left out.
std::optional<std::string> ElasticBooks::CheckLine(const Meeting& met, const Formed& formed) {
  const service::Membership& told = formed.membership;
  if (epochs_.try_emplace(met.epoch, met.key).first->second != met.key) {
    return fmt::format("two jobs are in epoch {}", met.epoch);
  }
  if (line_.try_emplace(told.generation, told).first->second != told) {
    return fmt::format("generation {} came about twice", told.generation);
  }
  for (const auto& [generation, earlier] : line_) {
    if (generation >= told.generation) break;
    for (const std::uint32_t member : told.members) {
      const bool is_new_there = member >= service::Quorum::FirstNew(generation + 1);
      if (!is_new_there && !earlier.RankOf(member)) {
        return fmt::format("member {} is back, which generation {} had left out", member,
                           generation);
      }
    }
  }
  return std::nullopt;
}

void ElasticBooks::Count(const Meeting& met) {
  const service::Membership& told = met.membership;
  const std::set<std::uint32_t>& spares = spares_[told.generation];
  std::vector<std::uint32_t> processes;
  for (const std::uint32_t member : told.members) {
    processes.push_back(processes_.at(member));
    const bool is_new =
        told.generation != 0 && member >= service::Quorum::FirstNew(told.generation);
    if (!is_new) continue;
    ++(spares.contains(member) ? counts_.spares : counts_.joins);
  }
  const bool shrinks = std::ranges::any_of(last_met_, [&processes](std::uint32_t process) {
    return std::ranges::find(processes, process) == processes.end();
  });
  counts_.shrinks += shrinks ? 1 : 0;
  counts_.moves += last_met_.empty() || met.leader == last_leader_ ? 0 : 1;
  last_leader_ = met.leader;
  last_met_ = std::move(processes);
}

bool ElasticBooks::IsLeftOut(std::uint32_t member) const {
  return std::ranges::any_of(decided_, [member](const auto& entry) {
    return member < service::Quorum::FirstNew(entry.first + 1) && !entry.second.RankOf(member);
  });
}

Result<std::uint64_t> ElasticBooks::OnApplied(std::uint32_t process, std::uint64_t iteration,
                                              std::uint64_t state,
                                              const std::vector<Average>& averages) {
  const std::string what = fmt::format("process {} applies iteration {}", process, iteration);
  const auto wrong = [&what](const std::string& why) { return Error(Code::kInternal, what + why); };
  const std::uint32_t contributors = averages.front().contributors;
  std::uint64_t after = Mix(state, iteration);
  for (std::uint32_t tensor = 0; tensor < averages.size(); ++tensor) {
    const Average& each = averages[tensor];
    if (each.contributors == 0) return wrong(fmt::format(" without average {}", tensor));
    if (each.contributors != contributors) return wrong(" with averages of different ranks");
    after = MixAll(after, each.bytes);
  }
  if (iteration > applied_.size() + 1) return wrong(", and nobody has applied the one before");
  if (iteration == applied_.size() + 1) {
    for (std::uint32_t tensor = 0; tensor < averages.size(); ++tensor) {
      if (auto sum = CheckSum(iteration, tensor, averages[tensor])) return wrong(*sum);
    }
    if (iteration > 1 && applied_.back().after != state) return wrong(" to another state");
    applied_.push_back({.contributors = contributors, .before = state, .after = after});
    return after;
  }
  const Iteration& known = applied_[iteration - 1];
  if (known.contributors != contributors) {
    return wrong(fmt::format(" summed over processes {}, and others summed it over {}",
                             fmt::join(contributors_[contributors - 1], " "),
                             fmt::join(contributors_[known.contributors - 1], " ")));
  }
  if (known.before != state) return wrong(" to another state than others");
  if (known.after != after) return wrong(" with other averages than others");
  return after;
}

std::optional<std::string> ElasticBooks::OnReceived(std::uint32_t process, std::uint64_t iteration,
                                                    std::uint64_t state) const {
  const bool known = iteration <= applied_.size();
  if (known && (iteration == 0 ? state == 0 : applied_[iteration - 1].after == state)) {
    return std::nullopt;
  }
  return fmt::format("process {} is given another state after iteration {} than others have",
                     process, iteration);
}

// The sum of exactly what the contributors gave, but for rounding; with the divisor of as many.
std::optional<std::string> ElasticBooks::CheckSum(std::uint64_t iteration, std::uint32_t tensor,
                                                  const Average& average) {
  const Planned planned = PlannedOf(tensor);
  if (planned.encoded) return std::nullopt;  // only near, by an error that later ones make good
  const std::vector<std::uint32_t>& processes = contributors_[average.contributors - 1];
  std::vector<double> sums(planned.count);
  std::vector<double> sizes(planned.count);
  for (const std::uint32_t process : processes) {
    const std::vector<std::byte>& gradient = GradientOf(process, iteration, tensor);
    for (std::size_t i = 0; i < planned.count; ++i) {
      const double value = ValueAt(planned.dtype, gradient, i);
      sums[i] += value;
      sizes[i] += std::abs(value);
    }
  }
  const auto ranks = static_cast<double>(processes.size());
  const double divisor = planned.reduction == Reduction::kAverage ? ranks : 1;
  const double rounding = (ranks + 2) * RoundingOf(planned.dtype);
  for (std::size_t i = 0; i < planned.count; ++i) {
    const double value = ValueAt(planned.dtype, average.bytes, i);
    // Halves below the normal ones are rounded by a fixed step.
    const double most = rounding * sizes[i] / divisor + 0x1p-20;
    if (std::abs(value - sums[i] / divisor) <= most) continue;
    return fmt::format(", whose average {} is {} in element {}, and {} by what processes {} gave",
                       tensor, value, i, sums[i] / divisor, fmt::join(processes, " "));
  }
  return std::nullopt;
}

}  // namespace headrace::sim
