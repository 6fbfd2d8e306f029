// One rank of a job on a GPU: how long a small sum takes from its post to its completion word, as
// the host sees it. Rank 0 prints the figures: of a post on a stream, of a post by the host, which
// shows what the stream adds, and of a post by the host in the host's memory, which shows what the
// GPU adds.
//
// Each rank and the service have a context of their own. With MPS their work runs side by side, and
// 20 us are the goal. Without, the GPU runs one context at a time and changes between them by time
// slices of its own length, several of which stand between a post and its completion: there the
// figure shows what that costs, and has no goal.
//
// usage: path_bench SOCKET RANK RANKS BYTES ROUNDS
#include <headrace/headrace.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "tests/gpu/figures.h"
#include "transport/memory/gpus.h"

namespace headrace::gpu {
namespace {

constexpr int kWarmUpMax = 200;
constexpr std::uint32_t kSpinUs = 1000;  // the host looks at the word all the time

struct Arguments {
  std::string socket;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  std::size_t bytes = 0;
  int rounds = 0;
};

int Fail(const char* doing, const hr_error& error) {
  fmt::print(stderr, "path_bench: {}: {}\n", doing, error.text);
  return 1;
}

hr_status Open(const Arguments& arguments, hr_session** session, hr_error* error) {
  hr_options options;
  if (const hr_status status = hr_options_init(&options, error); status != HR_OK) return status;
  std::snprintf(options.socket_path, sizeof options.socket_path, "%s", arguments.socket.c_str());
  std::snprintf(options.job, sizeof options.job, "path");
  options.rank = arguments.rank;
  options.world_size = arguments.ranks;
  options.spin_us = kSpinUs;
  return hr_open(&options, session, error);
}

enum class Way : std::uint8_t { kStream, kHost, kHostMemory };

std::string Text(Way way, const Arguments& arguments, bool has_mps) {
  const std::string what = fmt::format("post to completion of {} B", arguments.bytes);
  if (way == Way::kHostMemory) return what + ", in the host's memory, p50";
  return fmt::format("{}{}, {} contexts {} MPS, p50", what,
                     way == Way::kHost ? ", posted by the host" : "", arguments.ranks + 1,
                     has_mps ? "with" : "without");
}

hr_status Allocate(const Arguments& arguments, hr_session* session, Way way, hr_segment** segment,
                   hr_error* error) {
  if (way == Way::kHostMemory) return hr_segment_create(session, arguments.bytes, segment, error);
  return hr_segment_create_on_device(session, arguments.bytes, 0, segment, error);
}

int Measure(const Arguments& arguments, hr_session* session, transport::CuStream stream, Way way,
            bool has_mps) {
  hr_error error;
  hr_segment* segment = nullptr;
  if (Allocate(arguments, session, way, &segment, &error) != HR_OK) return Fail("segment", error);
  const hr_tensor_spec spec{.segment = segment,
                            .offset = 0,
                            .count = arguments.bytes / sizeof(float),
                            .dtype = HR_FLOAT32,
                            .name = way == Way::kStream ? "stream"
                                    : way == Way::kHost ? "host"
                                                        : "host memory",
                            .order = 0};
  hr_tensor* tensor = nullptr;
  if (hr_tensor_register(session, &spec, &tensor, &error) != HR_OK) return Fail("tensor", error);
  std::vector<double> times_us;
  const int warm_up = std::min(kWarmUpMax, arguments.rounds);
  for (int round = 0; round < warm_up + arguments.rounds; ++round) {
    hr_operation operation = 0;
    const TimeNs begin = MonotonicNow();
    const hr_status posted =
        way == Way::kStream
            ? hr_all_reduce_on_stream(session, tensor, nullptr, HR_AVERAGE, stream, &operation,
                                      &error)
            : hr_all_reduce(session, tensor, nullptr, HR_AVERAGE, &operation, &error);
    if (posted != HR_OK || hr_wait(session, operation, -1, &error) != HR_OK) {
      return Fail("sum", error);
    }
    if (round < warm_up) continue;
    times_us.push_back(static_cast<double>(MonotonicNow() - begin) / 1e3);
  }
  if (arguments.rank == 0) {
    const bool has_goal = way == Way::kStream && has_mps && arguments.bytes == 4096;
    PrintFigure(Text(way, arguments, has_mps), Median(times_us), "us", has_goal ? "< 20" : "");
  }
  return 0;
}

int Main(const Arguments& arguments) {
  const char* const named = std::getenv("HEADRACE_CUDA_LIBRARY");
  const auto gpus =
      transport::Gpus::Open(named != nullptr ? named : std::string(transport::kCudaLibrary));
  if (!gpus) return Skip(gpus.error().text());
  const auto stream =
      transport::CreateStream((*gpus)->context(0), transport::kCuStreamNonBlocking, 0);
  hr_error error;
  if (!stream) {
    fmt::print(stderr, "path_bench: {}\n", stream.error().text());
    return 1;
  }
  hr_session* session = nullptr;
  if (Open(arguments, &session, &error) != HR_OK) return Fail("open", error);
  int status = 0;
  for (const Way way : {Way::kStream, Way::kHost, Way::kHostMemory}) {
    if (status != 0) break;
    status = Measure(arguments, session, stream->get().thing, way, (*gpus)->devices()[0].mps);
  }
  if (hr_close(session, &error) != HR_OK && status == 0) return Fail("close", error);
  return status;
}

}  // namespace
}  // namespace headrace::gpu

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: path_bench SOCKET RANK RANKS BYTES ROUNDS\n");
    return 2;
  }
  return headrace::gpu::Main({.socket = argv[1],
                              .rank = static_cast<std::uint32_t>(std::atoi(argv[2])),
                              .ranks = static_cast<std::uint32_t>(std::atoi(argv[3])),
                              .bytes = static_cast<std::size_t>(std::atol(argv[4])),
                              .rounds = std::atoi(argv[5])});
}
