// Metrics of the services of other nodes.
#include <algorithm>
#include <string_view>
#include <vector>

#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::PeerRow;

// Its address, while it has not said its node's name.
std::string_view NameOf(const PeerRow& row) {
  const std::string_view name = ipc::GetText(row.name);
  return name.empty() ? ipc::GetText(row.address) : name;
}

// One for each name: a service may lead jobs of ours and take part in others, by a connection each.
// Those that nobody needs are left out.
std::vector<PeerRow> NamedPeers(const ipc::BoardReading& reading) {
  std::vector<PeerRow> peers;
  for (const PeerRow& row : reading.peers) {
    if (row.needed == 0) continue;
    const auto found = std::ranges::find_if(
        peers, [&row](const PeerRow& other) { return NameOf(other) == NameOf(row); });
    if (found == peers.end()) {
      peers.push_back(row);
    } else if (row.connected != 0 && found->connected == 0) {
      *found = row;
    }
  }
  return peers;
}

}  // namespace

void WritePeerMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  const std::vector<PeerRow> peers = NamedPeers(reading);
  text.Family("headrace_peer_up", kGauge,
              "1 while the other node's service is connected, 0 while a job waits for it.");
  for (const PeerRow& peer : peers) {
    text.Sample({{"peer", NameOf(peer)}}, MetricValue::Count(peer.connected));
  }
  text.Family("headrace_peer_round_trip_seconds", kGauge,
              "Best of the last few round trips to the other node's service.");
  for (const PeerRow& peer : peers) {
    if (peer.connected == 0 || peer.round_trip_ns < 0) continue;
    text.Sample({{"peer", NameOf(peer)}}, MetricValue::Seconds(peer.round_trip_ns));
  }
  text.Family("headrace_peer_clock_offset_seconds", kGauge,
              "Clock of the other node less this one's, within half of the round trip.");
  for (const PeerRow& peer : peers) {
    if (peer.connected == 0 || peer.round_trip_ns < 0) continue;
    text.Sample({{"peer", NameOf(peer)}}, MetricValue::Seconds(peer.clock_offset_ns));
  }
}

}  // namespace headrace::service
