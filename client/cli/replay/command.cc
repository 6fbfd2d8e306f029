#include "client/cli/replay/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>

#include "client/cli/ctl/job_text.h"
#include "client/cli/replay/report.h"
#include "client/cli/replay/run.h"
#include "client/cli/replay/trace.h"
#include "ipc/base/option_range.h"
#include "ipc/base/policies.h"
#include "ipc/board.h"

namespace headrace::replay {
namespace {

constexpr int kOk = 0;
constexpr int kFoundProblem = 1;
constexpr int kUsage = 2;

constexpr std::uint32_t kRanksMax = 64;

struct ReplayOptions {
  std::string profile;
  ReplayConfig config;
  double scale = 1;
  std::uint32_t ranks = 2;
  std::vector<std::string> nodes;  // sockets
  std::string job;
  std::uint32_t rank = HR_UNSET;  // HR_UNSET: all ranks are played here
  std::uint32_t world_size = 0;
  std::string rendezvous;
  std::string architecture;
  double timeout_seconds = 0;
  std::string trace;
};

int Complain(const std::string& text, int exit_code) {
  fmt::print(stderr, "headracectl: {}\n", text);
  return exit_code;
}

// What the options do not say together; empty when they make sense.
std::string Contradiction(const ReplayOptions& options) {
  const bool is_one = options.rank != HR_UNSET;
  if (is_one && options.job.empty()) return "--rank: give --job, the same on all ranks";
  if (is_one && options.world_size == 0) return "--rank: give --world-size";
  if (is_one && options.rank >= options.world_size)
    return "--rank: ranks go from 0 to world size - 1";
  if (is_one && !options.nodes.empty()) return "--rank: this rank's node goes by --socket";
  if (!is_one && options.world_size != 0) return "--world-size: say with --rank which one this is";
  if (options.nodes.size() > options.ranks) return "--nodes: each node needs a rank; give --ranks";
  return "";
}

// The ranks to play here, and the board of each one's node.
void AssignRanks(const ReplayOptions& options, const Globals& globals,
                 std::vector<AttachOptions>& attach, std::vector<std::string>& boards) {
  const bool is_one = options.rank != HR_UNSET;
  const std::uint32_t first = is_one ? options.rank : 0;
  const std::uint32_t count = is_one ? 1 : options.ranks;
  const std::vector<std::string> nodes =
      options.nodes.empty() ? std::vector{globals.socket_path} : options.nodes;
  for (std::uint32_t i = 0; i < count; ++i) {
    // Neighbours on one node, as torchrun has them.
    const std::string& socket = nodes[std::size_t{i} * nodes.size() / count];
    const bool has_named_board = globals.board->count() > 0 && nodes.size() == 1;
    attach.push_back(
        {.socket_path = socket,
         .job = options.job.empty() ? fmt::format("replay-{}", ::getpid()) : options.job,
         .rank = first + i,
         .world_size = is_one ? options.world_size : options.ranks,
         .rendezvous = options.rendezvous,
         .architecture = options.architecture,
         .policy = options.config.policy,
         .timeout_ms = static_cast<std::uint32_t>(options.timeout_seconds * 1000)});
    boards.push_back(has_named_board ? globals.board_path : ipc::BoardPathBeside(socket));
  }
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return SystemError("write " + path, errno);
  return {};
}

int Replay(ReplayOptions options, const Globals& globals) {
  if (const std::string wrong = Contradiction(options); !wrong.empty())
    return Complain(wrong, kUsage);
  Result<Profile> profile = ReadReplayable(options.profile, options.scale);
  if (!profile) return Complain(profile.error().text(), kFoundProblem);
  options.config.profile = std::move(profile).value();
  std::vector<AttachOptions> attach;
  std::vector<std::string> boards;
  AssignRanks(options, globals, attach, boards);
  const Result<std::vector<RankResult>> ranks = ReplayRanks(options.config, attach, boards);
  if (!ranks) return Complain(ranks.error().text(), kFoundProblem);
  const Profile& played = options.config.profile;
  const Heading heading{played.model,         played.tensors.size(),     played.bytes(),
                        played.dtype,         attach.front().world_size, options.scale,
                        options.config.jitter};
  const std::string text =
      globals.json ? ReportJson(heading, *ranks).dump(2) + "\n" : ReportText(heading, *ranks);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (options.trace.empty()) return kOk;
  const Status written = WriteFile(options.trace, TraceJson(played, *ranks));
  return written.ok() ? kOk : Complain(written.error().text(), kFoundProblem);
}

void AddJobOptions(CLI::App& replay, ReplayOptions& options) {
  replay.add_option("--ranks", options.ranks, "ranks to replay, spread over the nodes")
      ->check(Between(1U, kRanksMax))
      ->capture_default_str();
  replay
      .add_option("--nodes", options.nodes,
                  "sockets of the services, one for each node; default: --socket")
      ->delimiter(',')
      ->allow_extra_args(false);
  replay.add_option("--job", options.job, "name of the job; default: replay-PID");
  replay
      .add_option("--rank", options.rank,
                  "replay only this rank; other processes replay the others")
      ->check(Between(0U, kRanksMax - 1));
  replay.add_option("--world-size", options.world_size, "with --rank: number of ranks of the job")
      ->check(Between(1U, kRanksMax));
  replay.add_option("--rendezvous", options.rendezvous,
                    "host or host:port where the services of the job's nodes meet");
  replay
      .add_option("--architecture", options.architecture,
                  "who sums between nodes: the nodes themselves, or services with the role server")
      ->check(CLI::IsMember(std::vector<std::string>{"all-reduce", "parameter-server"}));
  replay
      .add_option("--timeout", options.timeout_seconds,
                  "timeout of an operation in seconds; default: that of the service")
      ->check(Between(0.001, 86400.0));
}

void AddIterationOptions(CLI::App& replay, ReplayOptions& options) {
  replay
      .add_option("--policy", options.config.policy,
                  "planning policy; default: that of the service")
      ->check(CLI::IsMember(
          std::vector<std::string>(plan::kPolicyNames.begin(), plan::kPolicyNames.end())));
  replay.add_option("--iterations", options.config.iterations, "iterations to measure")
      ->check(Between(1, 100'000))
      ->capture_default_str();
  replay
      .add_option(
          "--warmup", options.config.warmup,
          "least number of iterations before the measured ones; more until the plan is in force")
      ->check(Between(0, 100'000))
      ->capture_default_str();
  replay.add_option("--scale", options.scale, "factor for the profile's computing times")
      ->check(Between(0.0, 1e6, "0 to 1000000"))
      ->capture_default_str();
  replay
      .add_option("--jitter", options.config.jitter,
                  "each computation takes 1 - J to 1 + J times its time, uniformly distributed")
      ->check(Between(0.0, 1.0))
      ->capture_default_str();
  replay.add_option("--seed", options.config.seed, "seed of the jitter's random numbers")
      ->capture_default_str();
  replay.add_option("--trace", options.trace,
                    "file to write the last iteration to, for Perfetto or chrome://tracing");
}

}  // namespace

void AddReplayCommand(CLI::App& app, Globals globals, int& exit_code) {
  CLI::App* replay = app.add_subcommand(
      "replay", "replays a model's profile through the service; ranks sleep instead of computing");
  replay->set_help_flag("-h,--help", "print this help and exit");
  // Owned by the callback, which lives as long as the app.
  const auto options = std::make_shared<ReplayOptions>();
  replay->add_option("profile", options->profile, "profile file, as recorded by headrace.profile")
      ->required();
  AddIterationOptions(*replay, *options);
  AddJobOptions(*replay, *options);
  replay->callback([options, globals, &exit_code] { exit_code = Replay(*options, globals); });
}

}  // namespace headrace::replay
