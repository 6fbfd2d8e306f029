// Links with a delay between network namespaces, for kernels without netem:
//
//   bench_far_links RATE_MBIT DELAY_US PID...
//
// Makes a device "far0" in the network of each process and carries frames between them: each leaves
// at the rate of the sender's link, arrives at the rate of the receiver's, and is underway for the
// delay besides. Prints "ready" once the devices are there; their addresses are the caller's. Ends
// with its parent. One thread.
//
// Frames keep the header of segmentation offload, so that TCP hands over 64 KiB at a time; on the
// link each counts with the headers that its segments would have had.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

namespace headrace {
namespace {

constexpr std::size_t kFrameSizeMax = (std::size_t{64} << 10) + 256;
// virtio_net_hdr of linux/virtio_net.h, which is no C++.
struct Offload {
  std::uint8_t flags = 0;
  std::uint8_t gso_type = 0;  // 0: none
  std::uint16_t headers_size = 0;
  std::uint16_t gso_size = 0;
  std::uint16_t checksum_start = 0;
  std::uint16_t checksum_offset = 0;
};
static_assert(sizeof(Offload) == 10);

constexpr std::size_t kOffloadSize = sizeof(Offload);
constexpr std::size_t kHeadersSize = 66;  // of Ethernet, IP and TCP, of every segment
// A sender's backlog waits in its kernel, which slows TCP down, and not here.
constexpr TimeNs kBacklogMax = kMillisecond;
// What waits for a receiver's link longer is dropped, as a switch does.
constexpr TimeNs kQueueMax = 50 * kMillisecond;

struct Frame {
  TimeNs due_ns = 0;
  std::vector<std::byte> bytes;
};

struct End {
  UniqueFd device;
  TimeNs sending_free_ns = 0;
  TimeNs receiving_free_ns = 0;
  std::deque<Frame> coming;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "bench_far_links: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

// In the network of that process; this one's own is left.
UniqueFd MakeDevice(const std::string& pid) {
  const UniqueFd network(open(("/proc/" + pid + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!network || setns(network.get(), CLONE_NEWNET) != 0) Die("enter the network of " + pid);
  UniqueFd device(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!device) Die("open /dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "far0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(device.get(), TUNSETIFF, &request) != 0) Die("make far0");
  if (ioctl(device.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) Die("offload on far0");
  return device;
}

// Bytes on the link of a frame with its offload header.
std::size_t WireSize(const std::vector<std::byte>& bytes) {
  Offload offload;
  std::memcpy(&offload, bytes.data(), sizeof(offload));
  const std::size_t size = bytes.size() - kOffloadSize;
  if (offload.gso_type == 0 || offload.gso_size == 0) return size;
  const std::size_t segments = (size + offload.gso_size - 1) / offload.gso_size;
  return size + (segments - 1) * kHeadersSize;
}

class FarLinks {
 public:
  FarLinks(double rate_mbit, TimeNs delay_ns, std::vector<UniqueFd> devices)
      : ns_per_byte_(8e3 / rate_mbit), delay_ns_(delay_ns), ends_(devices.size()) {
    for (std::size_t i = 0; i < devices.size(); ++i) ends_[i].device = std::move(devices[i]);
  }

  [[noreturn]] void Run() {
    while (true) {
      TimeNs next = kNever;
      const TimeNs now = MonotonicNow();
      std::vector<pollfd> polled;
      for (End& end : ends_) {
        Deliver(end, now);
        if (!end.coming.empty()) next = std::min(next, end.coming.front().due_ns);
        const bool reads = end.sending_free_ns <= now + kBacklogMax;
        if (!reads) next = std::min(next, end.sending_free_ns - kBacklogMax);
        polled.push_back({.fd = reads ? end.device.get() : -1, .events = POLLIN, .revents = 0});
      }
      const TimeNs wait = std::max<TimeNs>(next - now, 0);
      const timespec timeout{.tv_sec = wait / kSecond, .tv_nsec = wait % kSecond};
      if (ppoll(polled.data(), polled.size(), next == kNever ? nullptr : &timeout, nullptr) < 0) {
        if (errno != EINTR) Die("poll");
        continue;
      }
      for (std::size_t i = 0; i < ends_.size(); ++i) {
        if ((polled[i].revents & POLLIN) != 0) Take(ends_[i], MonotonicNow());
      }
    }
  }

 private:
  void Take(End& from, TimeNs now) {
    while (from.sending_free_ns <= now + kBacklogMax) {
      std::vector<std::byte> bytes(kFrameSizeMax);
      const ssize_t size = read(from.device.get(), bytes.data(), bytes.size());
      if (size < static_cast<ssize_t>(kOffloadSize + 14)) return;
      bytes.resize(static_cast<std::size_t>(size));
      // Hardware addresses end with the number of the node, from 1; others are nobody's here.
      const auto to = std::to_integer<std::size_t>(bytes[kOffloadSize + 5]);
      const auto last = static_cast<TimeNs>(static_cast<double>(WireSize(bytes)) * ns_per_byte_);
      from.sending_free_ns = std::max(from.sending_free_ns, now) + last;
      if (to == 0 || to > ends_.size() || (bytes[kOffloadSize] & std::byte{1}) != std::byte{0}) {
        continue;
      }
      End& end = ends_[to - 1];
      const TimeNs arrival = std::max(from.sending_free_ns, end.receiving_free_ns + last);
      if (arrival > now + kQueueMax) continue;
      end.receiving_free_ns = arrival;
      end.coming.push_back({arrival + delay_ns_, std::move(bytes)});
    }
  }

  static void Deliver(End& end, TimeNs now) {
    while (!end.coming.empty() && end.coming.front().due_ns <= now) {
      const std::vector<std::byte>& bytes = end.coming.front().bytes;
      // What the node's kernel does not take is lost, as on any link.
      if (write(end.device.get(), bytes.data(), bytes.size()) < 0 && errno == EBADFD) {
        Die("write to far0");
      }
      end.coming.pop_front();
    }
  }

  double ns_per_byte_;
  TimeNs delay_ns_;
  std::vector<End> ends_;
};

}  // namespace
}  // namespace headrace

int main(int count, char** arguments) {
  using namespace headrace;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1);
  const std::vector<std::string> words(arguments + 1, arguments + count);
  const double rate_mbit = words.size() < 4 ? 0 : std::atof(words[0].c_str());
  const double delay_us = words.size() < 4 ? -1 : std::atof(words[1].c_str());
  if (!(rate_mbit > 0) || !(delay_us >= 0)) {
    std::fprintf(stderr, "usage: bench_far_links RATE_MBIT DELAY_US PID PID...\n");
    return 2;
  }
  std::vector<UniqueFd> devices;
  for (std::size_t i = 2; i < words.size(); ++i) devices.push_back(MakeDevice(words[i]));
  std::puts("ready");
  std::fflush(stdout);
  FarLinks(rate_mbit, static_cast<TimeNs>(delay_us * kMicrosecond), std::move(devices)).Run();
}
