// Metrics of the services of other nodes, and of the jobs that this one sums for as a server.
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

// One for each name at each leader: several users may have a job of that name there, and rows do
// not say whose they are.
std::vector<ipc::ServedRow> NamedServed(const ipc::BoardReading& reading) {
  std::vector<ipc::ServedRow> served;
  for (const ipc::ServedRow& row : reading.served) {
    const auto found = std::ranges::find_if(served, [&row](const ipc::ServedRow& other) {
      return ipc::GetText(other.job) == ipc::GetText(row.job) &&
             ipc::GetText(other.leader) == ipc::GetText(row.leader);
    });
    if (found == served.end()) {
      served.push_back(row);
      continue;
    }
    found->encoded_bytes += row.encoded_bytes;
    found->kept_bytes += row.kept_bytes;
    found->residual_millionths = std::max(found->residual_millionths, row.residual_millionths);
  }
  return served;
}

}  // namespace

void WriteServedMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  const std::vector<ipc::ServedRow> served = NamedServed(reading);
  const auto each = [&](std::string_view name, MetricType type, std::string_view help,
                        std::uint64_t ipc::ServedRow::*field) {
    text.Family(name, type, help);
    for (const ipc::ServedRow& row : served) {
      text.Sample({{"job", ipc::GetText(row.job)}, {"leader", ipc::GetText(row.leader)}},
                  MetricValue::Count(row.*field));
    }
  };
  each("headrace_served_encoded_bytes_total", kCounter,
       "Bytes of sums that this server encoded for the job's nodes, had it not.",
       &ipc::ServedRow::encoded_bytes);
  each("headrace_served_residual_bytes", kGauge,
       "Memory of this server for what it left out of the job's sums.",
       &ipc::ServedRow::kept_bytes);
  each("headrace_served_residual_millionths", kGauge,
       "Norm of what this server left out of the job's sums over that of the sums, lately.",
       &ipc::ServedRow::residual_millionths);
}

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
  text.Family("headrace_peer_resumes_total", kCounter,
              "Connections to the other node's service that broke and were resumed by another, "
              "which cost no job anything.");
  for (const PeerRow& peer : peers) {
    text.Sample({{"peer", NameOf(peer)}}, MetricValue::Count(peer.resumes));
  }
  text.Family("headrace_peer_unlinked_seconds_total", kCounter,
              "Time without a connection to the other node's service that answered, until it was "
              "resumed.");
  for (const PeerRow& peer : peers) {
    text.Sample({{"peer", NameOf(peer)}}, MetricValue::Seconds(peer.unlinked_ns));
  }
}

}  // namespace headrace::service
