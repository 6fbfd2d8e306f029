// A transport that passes everything on and remembers what is open, so that a test can say what the
// lane was given, in which order, and whose memory is still in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace headrace::support {

class ObservedTransport final : public transport::Transport {
 public:
  explicit ObservedTransport(std::unique_ptr<transport::Transport> inner)
      : inner_(std::move(inner)) {}

  const transport::Capabilities& capabilities() const override { return inner_->capabilities(); }
  [[nodiscard]] transport::PostResult Post(const transport::Transfer& transfer,
                                           TimeNs now) override;
  void Cancel(std::uint64_t token) override;
  bool DoWork(TimeNs now, std::vector<transport::Completion>& completions) override;

  // Accepted and not completed, in the order of their posts.
  const std::vector<transport::Transfer>& open() const { return open_; }
  // Whether an open transfer may touch any of these bytes.
  bool Uses(std::span<const std::byte> memory) const;

  std::vector<std::uint64_t> accepted;   // tokens, in order
  std::vector<std::uint64_t> positions;  // of the same transfers
  std::vector<bool> copying;             // likewise: they only copy
  std::vector<std::uint64_t> cancelled;  // tokens, in order, as asked

 private:
  std::unique_ptr<transport::Transport> inner_;
  std::vector<transport::Transfer> open_;
};

}  // namespace headrace::support
