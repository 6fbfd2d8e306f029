// Two nodes over NCCL, each a process of its own, on one GPU (or on one each where there are two):
// reductions of blocks of many sizes in two orders that the nodes interleave differently, compared
// with what they must be and between the nodes, first inside a node on all GPUs; then a node that
// does not come, and how long the end takes.
//
// usage: nccl_check [vanish]
//   vanish: node b kills itself instead of not coming
// HEADRACE_CUDA_LIBRARY and HEADRACE_NCCL_LIBRARY name other libraries than the system's.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/nccl_in_node.h"
#include "tests/support/device_memory.h"
#include "transport/exchange/exchange.h"
#include "transport/nccl/nccl_network.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::gpu {
namespace {

using transport::Completion;
using transport::Transfer;

constexpr TimeNs kPatience = 120 * kSecond;  // for all that other processes must do
constexpr TimeNs kEndMax = kSecond;          // for the end of what hangs
constexpr std::uint64_t kOtherOrder = std::uint64_t{1} << 63;
constexpr std::size_t kCounts[] = {1, 3, 1000, 65'537, 1'000'003, 5'242'881};

std::string Named(const char* variable, std::string_view otherwise) {
  const char* const named = std::getenv(variable);
  return named != nullptr ? named : std::string(otherwise);
}

[[noreturn]] void Fail(const std::string& why) {
  std::printf("failed: %s\n", why.c_str());
  std::fflush(stdout);
  std::exit(1);
}

template <typename Value>
Value OrFail(Result<Value> result) {
  if (!result) Fail(result.error().text());
  return std::move(result).value();
}

void OrFail(const Status& status) {
  if (!status) Fail(status.error().text());
}

// What the two processes tell each other besides.
std::string Swap(int socket, const std::string& said) {
  const auto size = static_cast<std::uint32_t>(said.size());
  std::uint32_t heard_size = 0;
  if (::send(socket, &size, sizeof size, MSG_NOSIGNAL) != sizeof size ||
      ::send(socket, said.data(), said.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(said.size()) ||
      ::recv(socket, &heard_size, sizeof heard_size, MSG_WAITALL) != sizeof heard_size) {
    Fail("the other node's process is gone");
  }
  std::string heard(heard_size, '\0');
  if (::recv(socket, heard.data(), heard.size(), MSG_WAITALL) !=
      static_cast<ssize_t>(heard.size())) {
    Fail("the other node's process is gone");
  }
  return heard;
}

transport::UcxOptions OverLoopback() {
  transport::UcxOptions options;
  options.net_devices = "lo";
  return options;
}

class Node {
 public:
  Node(std::uint32_t self, int socket)
      : self_(self),
        socket_(socket),
        gpus_(
            OrFail(transport::Gpus::Open(Named("HEADRACE_CUDA_LIBRARY", transport::kCudaLibrary)))),
        wire_(OrFail(transport::UcxWire::Open(OverLoopback()))),
        host_(*wire_, {}),
        device_(static_cast<int>(self % gpus_->count())) {
    transport::NcclNetworkOptions options;
    options.device = device_;
    options.nccl.library = Named("HEADRACE_NCCL_LIBRARY", transport::kNcclLibrary);
    network_ = OrFail(transport::NcclNetwork::Open(host_, *gpus_, options));
    const std::string theirs = Swap(socket_, network_->address());
    transport::GroupOptions group;
    group.group = 1;
    group.key = 77;
    group.self = self_;
    for (std::uint32_t node = 0; node < 2; ++node) {
      group.members.push_back(
          {.name = node == 0 ? "a" : "b", .address = node == self_ ? network_->address() : theirs});
    }
    OrFail(network_->OpenGroup(group));
    if (self_ == 0) std::printf("node a: %s\n", network_->WireNames().c_str());
  }

  void CheckAlone() {
    const std::string wrong =
        CheckInNode(*gpus_, Named("HEADRACE_NCCL_LIBRARY", transport::kNcclLibrary));
    if (!wrong.empty()) Fail(wrong);
  }

  // One block of every size in each order, posted by node b the other way round.
  void CompareBlocks() {
    std::vector<Block> blocks;
    for (const std::size_t count : kCounts) {
      blocks.push_back(MakeBlock(count, blocks.size() + 1));
      blocks.push_back(MakeBlock(count, kOtherOrder | (blocks.size() + 1)));
    }
    for (const bool other_order : {self_ == 1, self_ == 0}) {
      for (const Block& block : blocks) {
        if ((block.position >= kOtherOrder) == other_order) Post(block);
      }
    }
    for (std::size_t ended = 0; ended < blocks.size(); ++ended) {
      const Completion completion = Await();
      if (completion.code != Code::kOk) Fail(completion.cause);
    }
    std::uint64_t sum_of_all = 0;
    for (const Block& block : blocks) sum_of_all = sum_of_all * 31 + CheckBlock(block);
    if (Swap(socket_, std::to_string(sum_of_all)) != std::to_string(sum_of_all)) {
      Fail("the nodes have different bits");
    }
    if (self_ == 0) {
      std::printf("%zu all_reduces of 1 to %zu float32 in two orders: right, and equal\n",
                  blocks.size(), kCounts[std::size(kCounts) - 1]);
    }
  }

  // Node b does not come to the next one. Returns how long the end took on node a.
  void EndWhatHangs(bool vanishes) {
    Swap(socket_, "so far");
    if (self_ == 1) {
      if (vanishes) ::kill(::getpid(), SIGKILL);
      Swap(socket_, "until node a has ended");
      return network_->CloseGroup(1, "done");
    }
    const Block block = MakeBlock(1000, 1000);
    Post(block);
    std::vector<Completion> early;
    // Long enough to stand on the GPU; where NCCL tells of a loss, this ends by itself.
    const TimeNs posted = MonotonicNow();
    while (early.empty() && MonotonicNow() - posted < 200 * kMillisecond) {
      network_->DoWork(MonotonicNow(), early);
    }
    const TimeNs closed = MonotonicNow();
    network_->CloseGroup(1, "node b does not come");
    const Completion completion = early.empty() ? Await() : early.front();
    const TimeNs since = early.empty() ? closed : posted;
    const double took = static_cast<double>(MonotonicNow() - since) / kMillisecond;
    if (completion.code == Code::kOk) Fail("a transfer ended well that only one node posted");
    std::printf("ended: %s\n", completion.cause.c_str());
    PrintFigure(vanishes ? "end after a node vanished" : "end of a hang", took, "ms", "< 1000");
    if (took * kMillisecond > static_cast<double>(kEndMax)) Fail("it took too long");
    if (!vanishes) Swap(socket_, "ended");
  }

 private:
  struct Block {
    std::size_t count = 0;
    std::uint64_t position = 0;
    transport::DeviceMemory memory;
  };

  // Small integers, whose sum is exact in every order.
  float Element(std::uint32_t node, std::size_t index) const {
    return static_cast<float>((index * 7 + node * 13) % 1021);
  }

  void Check(transport::CuResult result, std::string_view doing) {
    OrFail(gpus_->driver().Check(result, doing));
  }

  Block MakeBlock(std::size_t count, std::uint64_t position) {
    Block block{
        count, position,
        OrFail(transport::AllocateDeviceMemory(gpus_->context(device_), count * sizeof(float)))};
    std::vector<float> elements(count);
    for (std::size_t i = 0; i < count; ++i) elements[i] = Element(self_, i);
    const transport::CurrentContext current(gpus_->driver(), gpus_->context(device_).get().context);
    Check(gpus_->driver().call().memcpy_to_device(block.memory.get().thing, elements.data(),
                                                  count * sizeof(float)),
          "fill a block");
    // The copy from pageable memory may go on after its call, and no other stream waits for it.
    Check(gpus_->driver().call().stream_synchronize(nullptr), "await the copy");
    return block;
  }

  void Post(const Block& block) {
    Transfer transfer{.token = ++token_,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .count = block.count,
                      .group = 1,
                      .position = block.position,
                      .members_count = 2};
    transfer.members[self_] = reinterpret_cast<std::byte*>(block.memory.get().thing);
    transfer.devices[self_] = static_cast<std::int8_t>(device_);
    if (network_->Post(transfer, MonotonicNow()) != transport::PostResult::kAccepted) {
      Fail("a post was refused");
    }
  }

  Completion Await() {
    const TimeNs deadline = MonotonicNow() + kPatience;
    while (ended_.empty()) {
      if (!network_->DoWork(MonotonicNow(), ended_)) std::this_thread::yield();
      if (MonotonicNow() > deadline) Fail("nothing ended in two minutes");
    }
    Completion completion = ended_.front();
    ended_.erase(ended_.begin());
    return completion;
  }

  // A number that depends on every bit of the block.
  std::uint64_t CheckBlock(const Block& block) {
    std::vector<float> elements(block.count);
    const transport::CurrentContext current(gpus_->driver(), gpus_->context(device_).get().context);
    Check(gpus_->driver().call().memcpy_to_host(elements.data(), block.memory.get().thing,
                                                block.count * sizeof(float)),
          "read a block");
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < block.count; ++i) {
      if (elements[i] != Element(0, i) + Element(1, i)) {
        Fail("element " + std::to_string(i) + " of " + std::to_string(block.count) + " is " +
             std::to_string(elements[i]));
      }
      std::uint32_t bits = 0;
      std::memcpy(&bits, &elements[i], sizeof bits);
      all = all * 1'000'003 + bits;
    }
    return all;
  }

  std::uint32_t self_;
  int socket_;
  std::unique_ptr<transport::Gpus> gpus_;
  std::unique_ptr<transport::UcxWire> wire_;
  transport::Exchange host_;
  int device_;
  std::unique_ptr<transport::NcclNetwork> network_;
  std::uint64_t token_ = 0;
  std::vector<Completion> ended_;
};

int RunNode(std::uint32_t self, int socket, bool vanishes) {
  Node node(self, socket);
  if (self == 0) node.CheckAlone();
  node.CompareBlocks();
  node.EndWhatHangs(vanishes);
  return 0;
}

// Why nothing can be shown here; empty where it can.
std::string Missing() {
  const auto gpus =
      transport::CudaDriver::Open(Named("HEADRACE_CUDA_LIBRARY", transport::kCudaLibrary));
  if (!gpus) return gpus.error().text();
  const auto nccl =
      transport::NcclLibrary::Open(Named("HEADRACE_NCCL_LIBRARY", transport::kNcclLibrary));
  return nccl ? "" : nccl.error().text();
}

// A fresh process: a driver does not outlive a fork.
pid_t Start(const char* program, std::uint32_t self, const std::array<int, 2>& sockets,
            const char* mode) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(1);
  // Two ranks on one GPU are refused unless they seem to be on two hosts.
  ::setenv("NCCL_HOSTID", self == 0 ? "headrace-node-a" : "headrace-node-b", 1);
  const std::string number = std::to_string(self);
  const std::string fd = std::to_string(sockets[self]);
  ::close(sockets[1 - self]);
  ::execl("/proc/self/exe", program, "--node", number.c_str(), fd.c_str(), mode, nullptr);
  std::_Exit(127);
}

// Whether it ended as it should.
bool Ended(pid_t pid, bool by_signal) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return by_signal ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                   : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int RunBoth(const char* program, const char* mode) {
  if (const std::string missing = Missing(); !missing.empty()) return Skip(missing);
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) != 0) Fail("no socket pair");
  const pid_t a = Start(program, 0, sockets, mode);
  const pid_t b = Start(program, 1, sockets, mode);
  for (const int socket : sockets) ::close(socket);
  const bool vanishes = std::string_view(mode) == "vanish";
  const bool a_is_good = Ended(a, false);
  if (!a_is_good) ::kill(b, SIGKILL);
  const bool b_is_good = Ended(b, vanishes);
  return a_is_good && b_is_good ? 0 : 1;
}

}  // namespace
}  // namespace headrace::gpu

int main(int argc, char** argv) {
  using headrace::gpu::RunBoth;
  using headrace::gpu::RunNode;
  if (argc == 5 && std::string_view(argv[1]) == "--node") {
    return RunNode(static_cast<std::uint32_t>(std::atoi(argv[2])), std::atoi(argv[3]),
                   std::string_view(argv[4]) == "vanish");
  }
  return RunBoth(argv[0], argc == 2 ? argv[1] : "hang");
}
