#include "client/cli/replay/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>

#include "client/cli/ctl/words.h"
#include "client/cli/options/range.h"
#include "client/cli/replay/report.h"
#include "client/cli/replay/run.h"
#include "client/cli/replay/trace.h"
#include "ipc/base/policies.h"
#include "ipc/board.h"

namespace headrace::replay {
namespace {

constexpr int kOk = 0;
constexpr int kFoundProblem = 1;
constexpr int kUsage = 2;

constexpr std::uint32_t kRanksMax = 64;

struct Wish {
  std::string profile;
  Score score;
  double scale = 1;
  std::uint32_t ranks = 2;
  std::vector<std::string> nodes;  // sockets
  std::string job;
  std::uint32_t rank = HR_UNSET;  // HR_UNSET: all ranks are played here
  std::uint32_t world_size = 0;
  std::string rendezvous;
  double timeout_seconds = 0;
  std::string trace;
};

int Complain(const std::string& text, int exit_code) {
  fmt::print(stderr, "headracectl: {}\n", text);
  return exit_code;
}

// What the options do not say together; empty when they make sense.
std::string Contradiction(const Wish& wish) {
  const bool is_one = wish.rank != HR_UNSET;
  if (is_one && wish.job.empty()) return "--rank: give --job, the same on all ranks";
  if (is_one && wish.world_size == 0) return "--rank: give --world-size";
  if (is_one && wish.rank >= wish.world_size) return "--rank: ranks go from 0 to world size - 1";
  if (is_one && !wish.nodes.empty()) return "--rank: this rank's node goes by --socket";
  if (!is_one && wish.world_size != 0) return "--world-size: say with --rank which one this is";
  if (wish.nodes.size() > wish.ranks) return "--nodes: each node needs a rank; give --ranks";
  return "";
}

// The ranks to play here, and the board of each one's node.
void Seat(const Wish& wish, const Globals& globals, std::vector<Place>& places,
          std::vector<std::string>& boards) {
  const bool is_one = wish.rank != HR_UNSET;
  const std::uint32_t first = is_one ? wish.rank : 0;
  const std::uint32_t count = is_one ? 1 : wish.ranks;
  const std::vector<std::string> nodes =
      wish.nodes.empty() ? std::vector{globals.socket_path} : wish.nodes;
  for (std::uint32_t i = 0; i < count; ++i) {
    // Neighbours on one node, as torchrun has them.
    const std::string& socket = nodes[std::size_t{i} * nodes.size() / count];
    const bool has_named_board = globals.board->count() > 0 && nodes.size() == 1;
    places.push_back({.socket_path = socket,
                      .job = wish.job.empty() ? fmt::format("replay-{}", ::getpid()) : wish.job,
                      .rank = first + i,
                      .world_size = is_one ? wish.world_size : wish.ranks,
                      .rendezvous = wish.rendezvous,
                      .policy = wish.score.policy,
                      .timeout_ms = static_cast<std::uint32_t>(wish.timeout_seconds * 1000)});
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

int Replay(Wish wish, const Globals& globals) {
  if (const std::string wrong = Contradiction(wish); !wrong.empty()) return Complain(wrong, kUsage);
  Result<Profile> profile = ReadProfile(wish.profile, wish.scale);
  if (!profile) return Complain(profile.error().text(), kFoundProblem);
  wish.score.profile = std::move(profile).value();
  std::vector<Place> places;
  std::vector<std::string> boards;
  Seat(wish, globals, places, boards);
  const Result<std::vector<Played>> played = PlayRanks(wish.score, places, boards);
  if (!played) return Complain(played.error().text(), kFoundProblem);
  const Profile& of = wish.score.profile;
  const Heading heading{of.model,         of.tensors.size(),         of.bytes(),
                        of.dtype,         places.front().world_size, wish.scale,
                        wish.score.jitter};
  const std::string text =
      globals.json ? ReportJson(heading, *played).dump(2) + "\n" : ReportText(heading, *played);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (wish.trace.empty()) return kOk;
  const Status written = WriteFile(wish.trace, TraceJson(of, *played));
  return written.ok() ? kOk : Complain(written.error().text(), kFoundProblem);
}

void AddJobOptions(CLI::App& replay, Wish& wish) {
  replay.add_option("--ranks", wish.ranks, "ranks to play, spread over the nodes")
      ->check(cli::Between(1U, kRanksMax))
      ->capture_default_str();
  replay.add_option("--nodes", wish.nodes, "sockets of the nodes' services; default: --socket")
      ->delimiter(',')
      ->allow_extra_args(false);
  replay.add_option("--job", wish.job, "name of the job; default: replay- and the process id");
  replay.add_option("--rank", wish.rank, "play this rank only; the others are played elsewhere")
      ->check(cli::Between(0U, kRanksMax - 1));
  replay.add_option("--world-size", wish.world_size, "with --rank: ranks of the job")
      ->check(cli::Between(1U, kRanksMax));
  replay.add_option("--rendezvous", wish.rendezvous,
                    "host or host:port where the services of the job's nodes meet");
  replay
      .add_option("--timeout", wish.timeout_seconds,
                  "seconds that an operation may take; default: as the service is configured")
      ->check(cli::Between(0.001, 86400.0));
}

void AddMusicOptions(CLI::App& replay, Wish& wish) {
  replay
      .add_option("--policy", wish.score.policy,
                  "makes the plan; default: as the service is configured")
      ->check(CLI::IsMember(
          std::vector<std::string>(plan::kPolicyNames.begin(), plan::kPolicyNames.end())));
  replay.add_option("--iterations", wish.score.iterations, "iterations that count")
      ->check(cli::Between(1, 100'000))
      ->capture_default_str();
  replay
      .add_option("--warmup", wish.score.warmup,
                  "iterations before those at least; more where the plan is not in force yet")
      ->check(cli::Between(0, 100'000))
      ->capture_default_str();
  replay.add_option("--scale", wish.scale, "computing takes so many times the profile's times")
      ->check(cli::Between(0.0, 1e6, "0 to 1000000"))
      ->capture_default_str();
  replay
      .add_option("--jitter", wish.score.jitter,
                  "each computation takes 1 - J to 1 + J of its time, evenly distributed")
      ->check(cli::Between(0.0, 1.0))
      ->capture_default_str();
  replay.add_option("--seed", wish.score.seed, "of the jitter")->capture_default_str();
  replay.add_option("--trace", wish.trace,
                    "file for the last iteration, for Perfetto or chrome://tracing");
}

}  // namespace

void AddReplayCommand(CLI::App& app, Globals globals, int& exit_code) {
  CLI::App* replay = app.add_subcommand(
      "replay", "plays a model's profile through the service, sleeping instead of computing");
  replay->set_help_flag("-h,--help", "print this help and exit");
  // Owned by the callback, which lives as long as the app.
  const auto wish = std::make_shared<Wish>();
  replay->add_option("profile", wish->profile, "a profile, as headrace.profile records it")
      ->required();
  AddMusicOptions(*replay, *wish);
  AddJobOptions(*replay, *wish);
  replay->callback([wish, globals, &exit_code] { exit_code = Replay(*wish, globals); });
}

}  // namespace headrace::replay
