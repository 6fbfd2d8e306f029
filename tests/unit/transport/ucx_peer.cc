// A node of its own process, for tests that kill or stop it. It prints its wire's address as hex,
// reads the other side's from stdin, connects, and from then on sends one large message after the
// other and receives all that come, but for those of the last position, which it leaves waiting. It
// ends with its stdin.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "transport/ucx/ucx_wire.h"

namespace {

using headrace::Code;
using headrace::transport::ArrivalId;
using headrace::transport::LinkId;
using headrace::transport::MessageHeader;
using headrace::transport::UcxOptions;
using headrace::transport::UcxWire;

constexpr std::size_t kMessageSize = 64 << 20;

struct Peer final : headrace::transport::WireEvents {
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) override {
    if (header.position == UINT64_MAX) return;
    if (size > target.size()) return wire->Drop(arrival);
    wire->Accept(arrival, target.data(), 0);
  }
  void Sent(std::uint64_t, Code code) override {
    if (code == Code::kOk) SendOne();
  }
  void Received(std::uint64_t, Code) override {}
  void LinkFailed(LinkId, const std::string&) override {}
  void SendOne() {
    MessageHeader header;
    header.key = 1;
    wire->Send(link, header, source.data(), source.size(), 0);
  }

  UcxWire* wire = nullptr;
  LinkId link = 0;
  std::vector<std::byte> source = std::vector<std::byte>(kMessageSize, std::byte{0x5a});
  std::vector<std::byte> target = std::vector<std::byte>(kMessageSize);
};

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace

int main() {
  UcxOptions options;
  options.net_devices = "lo";
  auto wire = UcxWire::Open(options);
  if (!wire) {
    std::fprintf(stderr, "ucx_peer: %s\n", wire.error().text().c_str());
    return 1;
  }
  for (const char byte : (*wire)->address()) std::printf("%02x", static_cast<unsigned char>(byte));
  std::printf("\n");
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return 1;
  Peer peer;
  peer.wire = wire->get();
  const auto link = (*wire)->Connect(FromHex(line), 1, 0);
  if (!link) {
    std::fprintf(stderr, "ucx_peer: %s\n", link.error().text().c_str());
    return 1;
  }
  peer.link = *link;
  peer.SendOne();
  for (;;) {
    pollfd fds[] = {{0, POLLIN, 0}, {(*wire)->event_fd(), POLLIN, 0}};
    if (!(*wire)->Progress(peer) && (*wire)->PrepareToSleep()) poll(fds, 2, -1);
    char byte = 0;
    if (poll(fds, 1, 0) == 1 && read(0, &byte, 1) == 0) return 0;
  }
}
