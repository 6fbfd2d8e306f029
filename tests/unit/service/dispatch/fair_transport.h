// A lane whose transfers all progress at the same time, each at an equal part of its rate, in
// virtual time: what two jobs have between nodes. It moves no bytes.
#pragma once

#include <memory>
#include <vector>

#include "tests/support/hand_driven_node.h"
#include "transport/transport.h"

namespace headrace::support {

class FairTransport final : public transport::Transport {
 public:
  explicit FairTransport(double ns_per_byte);

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] transport::PostResult Post(const transport::Transfer& transfer,
                                           TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<transport::Completion>& completions) override;

 private:
  struct Open {
    std::uint64_t token = 0;
    TimeNs begin_ns = 0;
    double left_ns = 0;  // of its time with the lane alone
    bool cancelled = false;
  };

  transport::Capabilities capabilities_;
  double ns_per_byte_;
  TimeNs now_ns_ = 0;
  std::vector<Open> open_;
};

MakeTransport Fair(double ns_per_byte);

}  // namespace headrace::support
