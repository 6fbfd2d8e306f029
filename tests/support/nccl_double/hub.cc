#include "tests/support/nccl_double/hub.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/support/nccl_double/messages.h"
#include "tests/support/nccl_double/settings.h"

namespace headrace::nccl_double {
namespace {

constexpr std::string_view kMark = "headrace double of NCCL ";

class Hub {
 public:
  explicit Hub(UniqueFd listener) : listener_(std::move(listener)) {}

  void Run() {
    while (ranks_.empty() || !AllGone()) {
      Wait();
      if (!formed_) {
        FormIfAllCame();
      } else {
        AnswerIfAllSaid();
      }
    }
  }

 private:
  struct Rank {
    UniqueFd socket;
    Message said{};
    bool has_said = false;
    bool gone = false;
    std::uint32_t number = 0;
  };

  bool AllGone() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.gone; });
  }

  bool AllSaid() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.has_said; });
  }

  // Until somebody comes, says something or goes.
  void Wait() {
    std::vector<pollfd> polled{
        {.fd = formed_ ? -1 : listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Rank& rank : ranks_) {
      // Who has said something has nothing to say before the answer, but may go.
      const short events = rank.has_said ? POLLRDHUP : POLLIN;
      polled.push_back({.fd = rank.gone ? -1 : rank.socket.get(), .events = events, .revents = 0});
    }
    if (::poll(polled.data(), polled.size(), -1) <= 0) return;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (polled[i + 1].revents != 0) Listen(ranks_[i]);
    }
    if (polled[0].revents == 0) return;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) ranks_.push_back({.socket = std::move(socket)});
  }

  void Listen(Rank& rank) {
    if (!rank.has_said && Hear(rank.socket.get(), rank.said)) {
      rank.has_said = true;
      if (rank.said.header.says == Says::kHello) rank.number = rank.said.header.rank;
      return;
    }
    rank.gone = true;
    rank.has_said = false;
    rank.socket.reset();
    // Over a network, NCCL tells the others that one is gone; they go on waiting all the same.
    if (!formed_ || finalized_) return;
    for (const Rank& other : ranks_) {
      if (!other.gone) Answer(other, NcclResult::kRemoteError, {});
    }
  }

  static void Answer(const Rank& rank, NcclResult result, std::span<const std::byte> bytes) {
    Say(rank.socket.get(), {.says = Says::kAnswer, .result = result}, bytes);
  }

  void FormIfAllCame() {
    if (ranks_.empty() || !AllSaid() || ranks_.size() < ranks_[0].said.header.ranks_count) return;
    formed_ = true;
    std::ranges::sort(ranks_, {}, &Rank::number);
    NcclResult result = NcclResult::kSuccess;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const Header& mine = ranks_[i].said.header;
      if (mine.rank != i) result = NcclResult::kInvalidArgument;
      for (std::size_t j = 0; j < i; ++j) {
        const Header& other = ranks_[j].said.header;
        if (mine.host == other.host && mine.gpu == other.gpu) result = NcclResult::kInvalidUsage;
      }
    }
    for (Rank& rank : ranks_) {
      rank.has_said = false;
      Answer(rank, result, {});
    }
  }

  void AnswerIfAllSaid() {
    if (!AllSaid()) return;
    const Header call = ranks_[0].said.header;
    for (const Rank& rank : ranks_) {
      // As with NCCL: nobody notices, and nothing goes on.
      if (!rank.said.header.IsSameCall(call)) return;
    }
    std::vector<std::vector<std::byte>> inputs;
    for (Rank& rank : ranks_) {
      rank.has_said = false;
      inputs.push_back(std::move(rank.said.bytes));
    }
    std::vector<std::vector<std::byte>> outputs(ranks_.size());
    if (call.says == Says::kCall) outputs = CarryOut(call, std::move(inputs));
    finalized_ = call.says == Says::kGoodbye;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Answer(ranks_[i], NcclResult::kSuccess, outputs[i]);
    }
  }

  UniqueFd listener_;
  std::vector<Rank> ranks_;  // in the order of numbers once they are formed
  bool formed_ = false;
  bool finalized_ = false;
};

}  // namespace

transport::NcclResult StartHub(transport::NcclId& id) {
  static std::atomic<std::uint64_t> serial = 0;
  const std::string name =
      std::string(kMark) + std::to_string(::getpid()) + " " + std::to_string(++serial);
  std::optional<UniqueFd> listener = Listen(name);
  if (!listener) return NcclResult::kSystemError;
  id = {};
  std::memcpy(id.bytes.data(), name.data(), name.size());
  Settings::Get().Count(&NcclDoubleCounts::hubs, 1);
  std::thread([hub = Hub(std::move(*listener))]() mutable {
    hub.Run();
    Settings::Get().Count(&NcclDoubleCounts::hubs, -1);
  }).detach();
  return NcclResult::kSuccess;
}

std::string NameOf(const transport::NcclId& id) {
  const auto* const end = std::find(id.bytes.begin(), id.bytes.end(), '\0');
  std::string name(id.bytes.begin(), end);
  return name.starts_with(kMark) ? name : std::string();
}

}  // namespace headrace::nccl_double
