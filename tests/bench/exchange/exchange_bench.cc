// What the exchange's gate costs a job that is alone: bytes a second of all_reduces between two
// nodes, each on a thread of its own, over UCX on loopback TCP, with different room for a peer.
//
//     exchange_bench [ROUNDS] [MIB]
//
// The rooms take turns, since nothing holds still on a machine that others use, and each round's
// figures are given as shares of the round's figure without a gate. One JSON object a room.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/base/check.h"
#include "transport/exchange/exchange.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t kTransfers = 24;  // of a measurement, all posted at once

struct Node {
  std::unique_ptr<UcxWire> wire;
  std::unique_ptr<Exchange> exchange;
  std::vector<float> memory;
};

void RunNode(Node& node, std::uint32_t self, std::uint64_t first_position) {
  std::vector<Completion> completions;
  for (std::uint32_t i = 0; i < kTransfers; ++i) {
    Transfer transfer{.token = i,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .count = node.memory.size(),
                      .group = 1,
                      .position = first_position + i,
                      .members_count = 2};
    transfer.members[self] = reinterpret_cast<std::byte*>(node.memory.data());
    HR_CHECK(node.exchange->Post(transfer, MonotonicNow()) == PostResult::kAccepted, i);
  }
  while (completions.size() < kTransfers) {
    if (node.exchange->DoWork(MonotonicNow(), completions) || !node.exchange->PrepareToSleep()) {
      continue;
    }
    pollfd waits{.fd = node.exchange->event_fd(), .events = POLLIN, .revents = 0};
    poll(&waits, 1, 100);
  }
  for (const Completion& completion : completions) {
    HR_CHECK(completion.code == Code::kOk, completion.cause);
  }
}

// Bytes that each node sends a second.
double Measure(std::size_t room, std::size_t mib) {
  std::vector<Node> nodes(2);
  GroupOptions options{.group = 1, .key = 7, .members = {}};
  for (Node& node : nodes) {
    auto wire = UcxWire::Open({.net_devices = "lo", .settings = {}});
    HR_CHECK(wire.ok(), wire.error().text());
    node.wire = std::move(wire).value();
    ExchangeOptions exchange;
    exchange.peer_bytes_max = room;
    node.exchange = std::make_unique<Exchange>(*node.wire, exchange);
    node.memory.resize((mib << 20) / sizeof(float));
    options.members.push_back({"node", node.wire->address()});
  }
  for (options.self = 0; options.self < 2; ++options.self) {
    const Status opened = nodes[options.self].exchange->OpenGroup(options);
    HR_CHECK(opened.ok(), opened.error().text());
  }
  double best = 0;
  for (std::uint64_t round = 0; round < 2; ++round) {  // the first opens the sockets
    const TimeNs begin = MonotonicNow();
    std::thread other([&] { RunNode(nodes[1], 1, round * kTransfers); });
    RunNode(nodes[0], 0, round * kTransfers);
    other.join();
    const double seconds = static_cast<double>(MonotonicNow() - begin) / kSecond;
    best = static_cast<double>(kTransfers * (mib << 20)) / seconds;
  }
  return best;
}

int Main(int count, char** values) {
  const auto rounds = count > 1 ? std::strtoul(values[1], nullptr, 10) : 7UL;
  const auto mib = count > 2 ? std::strtoul(values[2], nullptr, 10) : 4UL;
  // Twice without a gate: how far the second is from the first is what the machine scatters.
  constexpr std::size_t kNoGate = SIZE_MAX;
  const std::vector<std::size_t> rooms{kNoGate, std::size_t{96} << 10,  std::size_t{384} << 10,
                                       kNoGate, std::size_t{768} << 10, std::size_t{1536} << 10};
  std::vector<std::vector<double>> rates(rooms.size());
  std::vector<std::vector<double>> shares(rooms.size());
  for (unsigned long round = 0; round < rounds; ++round) {
    // Each goes first in its turn.
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const std::size_t room = (i + round) % rooms.size();
      rates[room].push_back(Measure(rooms[room], mib));
    }
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      shares[i].push_back(rates[i].back() / rates[0].back());
    }
  }
  const auto median = [](std::vector<double> values_of) {
    std::ranges::sort(values_of);
    return values_of[values_of.size() / 2];
  };
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    const std::string room = rooms[i] == kNoGate ? "null" : std::to_string(rooms[i]);
    std::printf("{\"peer_bytes_max\": %s, \"bytes_per_s\": %.0f, \"of_no_gate\": %.3f}\n",
                room.c_str(), median(rates[i]), median(shares[i]));
  }
  return 0;
}

}  // namespace
}  // namespace headrace::transport

int main(int count, char** values) { return headrace::transport::Main(count, values); }
