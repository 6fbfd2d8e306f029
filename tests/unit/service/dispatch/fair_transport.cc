#include "tests/unit/service/dispatch/fair_transport.h"

#include <algorithm>

namespace headrace::support {

FairTransport::FairTransport(double ns_per_byte)
    : capabilities_{.name = "fair",
                    .collectives = 1U << static_cast<unsigned>(Collective::kAllReduce),
                    .transfers_max = 16,
                    .piece_size = 4096,
                    .threads = 1},
      ns_per_byte_(ns_per_byte) {}

transport::PostResult FairTransport::Post(const transport::Transfer& transfer, TimeNs now) {
  if (open_.empty()) now_ns_ = now;
  open_.push_back({.token = transfer.token,
                   .begin_ns = now,
                   .left_ns = ns_per_byte_ * static_cast<double>(transfer.Bytes())});
  return transport::PostResult::kAccepted;
}

void FairTransport::Cancel(std::uint64_t token) {
  for (Open& open : open_) open.cancelled |= open.token == token;
}

bool FairTransport::DoWork(TimeNs now, std::vector<transport::Completion>& completions) {
  // From one end to the next: who is left shares what is left of the time.
  double passed_ns = static_cast<double>(now - now_ns_);
  now_ns_ = now;
  while (!open_.empty()) {
    const auto sharing = static_cast<double>(open_.size());
    const auto least = std::ranges::min_element(open_, {}, &Open::left_ns);
    const double step_ns = std::min(passed_ns / sharing, least->left_ns);
    for (Open& open : open_) open.left_ns -= step_ns;
    passed_ns -= step_ns * sharing;
    const auto is_over = [](const Open& open) { return open.left_ns < 1 || open.cancelled; };
    for (const Open& open : open_) {
      if (!is_over(open)) continue;
      completions.push_back({.token = open.token,
                             .code = open.cancelled ? Code::kCancelled : Code::kOk,
                             .begin_ns = open.begin_ns,
                             .end_ns = now});
    }
    if (std::erase_if(open_, is_over) == 0) break;
  }
  return false;
}

MakeTransport Fair(double ns_per_byte) {
  return [ns_per_byte](transport::Waker&) { return std::make_unique<FairTransport>(ns_per_byte); };
}

}  // namespace headrace::support
