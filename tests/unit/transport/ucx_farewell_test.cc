// Wires that end while UCX is still connecting them, as those of a service that is stopped just
// then.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/unit/transport/ucx_pair.h"

namespace headrace::transport {
namespace {

UcxOptions Left() {
  UcxOptions options = Loopback();
  options.leave_at_end = true;
  return options;
}

// Some wires connect to each other and send; then they end, one after another, at some moment of
// their handshakes.
class Meeting {
 public:
  explicit Meeting(std::uint32_t seed) : dice_(seed) {
    const std::size_t count = 2 + Below(3);
    for (std::size_t i = 0; i < count; ++i) wires_.push_back(std::make_unique<Side>(Left()));
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < count; ++j) {
        if (i != j && Below(2) == 0) links_.push_back({i, wires_[i]->ConnectTo(*wires_[j])});
      }
    }
  }

  void Run() {
    const std::vector<std::byte> bytes = Pattern(1 << 20, 7);
    std::uint64_t token = 0;
    for (std::size_t left = Below(60); left > 0; --left) {
      ProgressOne(1 + Below(4));
      if (links_.empty() || Below(4) != 0) continue;
      const auto [from, link] = links_[Below(links_.size())];
      const std::size_t size = Below(2) == 0 ? 100 : bytes.size();
      ++token;
      wires_[from]->wire->Send(link, HeaderOf(1, token), bytes.data(), size, token);
    }
    while (!wires_.empty()) {
      wires_.erase(wires_.begin() + static_cast<std::ptrdiff_t>(Below(wires_.size())));
      if (!wires_.empty()) ProgressOne(Below(6));
    }
  }

 private:
  std::size_t Below(std::size_t bound) { return dice_() % bound; }
  void ProgressOne(std::size_t times) {
    Side& side = *wires_[Below(wires_.size())];
    for (; times > 0; --times) side.wire->Progress(side.told);
  }

  std::mt19937 dice_;
  std::vector<std::unique_ptr<Side>> wires_;
  struct From {
    std::size_t wire = 0;
    LinkId link = 0;
  };
  std::vector<From> links_;
};

// Each seed leaves its engines to the end of this process. Destroyed, they ended it at the seventh.
TEST(UcxFarewell, InTheMiddleOfAHandshakeDoesNotEndTheProcess) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Meeting(seed).Run();
  }
}

}  // namespace
}  // namespace headrace::transport
