#include "client/lib/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "ipc/base/architecture.h"
#include "ipc/base/steering.h"

namespace headrace::client {
namespace {

constexpr std::string_view kDefaultSocket = "/run/headrace/headrace.sock";
// Long enough for a service that is busy mapping gigabytes, short enough to notice a stopped one.
constexpr std::uint32_t kDefaultCallTimeoutMs = 10'000;
// The default for a job that goes on without lost ranks.
constexpr std::uint32_t kDefaultReconnectS = 30;
// In which a supervisor starts a service again, whose ranks then are not lost.
constexpr std::uint32_t kDefaultShrinkGraceMs = 5'000;

// As HR_ROLE_... number them.
constexpr std::array<std::string_view, 4> kRoleNames = {"rank", "join", "spare", "rejoin"};

// Collects what is wrong with the environment, to say all of it at once.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  // Unset and empty are the same.
  std::optional<std::string_view> Text(const char* name) const {
    const char* value = environment_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }

  std::uint32_t Number(const char* name, std::uint32_t otherwise) {
    const std::optional<std::string_view> text = Text(name);
    if (!text) return otherwise;
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error == std::errc() && end == text->data() + text->size() && number != HR_UNSET) {
      return number;
    }
    Refuse(fmt::format("{}=\"{}\" is not a whole number below 2^32 - 1", name, *text));
    return otherwise;
  }

  // "NUMBER" or "NUMBER:WORD": the number, 0 where nothing is said, and whether the word follows.
  std::pair<std::uint32_t, bool> NumberAndWord(const char* name, std::string_view word) {
    const std::string_view text = Text(name).value_or("0");
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
    const bool has_word = rest.starts_with(':') && rest.substr(1) == word;
    if (error == std::errc() && (rest.empty() || has_word)) return {number, has_word};
    Refuse(fmt::format("{}=\"{}\" is neither SECONDS nor SECONDS:{}", name, text, word));
    return {0, false};
  }

  // Its place among the names; 0, the first, where nothing is said.
  std::uint32_t OneOf(const char* name, std::span<const std::string_view> names) {
    const std::optional<std::string_view> text = Text(name);
    if (!text) return 0;
    const auto found = std::ranges::find(names, *text);
    if (found != names.end()) return static_cast<std::uint32_t>(found - names.begin());
    Refuse(fmt::format("{}=\"{}\" is not one of {}", name, *text, fmt::join(names, ", ")));
    return 0;
  }

  void Copy(std::string_view what, std::string_view text, std::span<char> field) {
    std::fill(field.begin(), field.end(), '\0');
    if (text.size() >= field.size()) {
      Refuse(fmt::format("{} \"{}\" has {} bytes, {} are possible", what, text, text.size(),
                         field.size() - 1));
      return;
    }
    std::copy(text.begin(), text.end(), field.begin());
  }

  Status status() const {
    if (refusals_.empty()) return {};
    return Error(Code::kInvalidArgument, refusals_);
  }

 private:
  void Refuse(const std::string& refusal) {
    if (!refusals_.empty()) refusals_ += "; ";
    refusals_ += refusal;
  }

  const Environment& environment_;
  std::string refusals_;
};

// torchrun says "none" when it was started without a run id: the rendezvous address then tells two
// runs on one node apart.
void FillJob(Reader& reader, std::span<char> field) {
  if (const auto job = reader.Text("HEADRACE_JOB")) return reader.Copy("HEADRACE_JOB", *job, field);
  const auto run = reader.Text("TORCHELASTIC_RUN_ID");
  if (run && *run != "none") return reader.Copy("TORCHELASTIC_RUN_ID", *run, field);
  const auto address = reader.Text("MASTER_ADDR");
  const auto port = reader.Text("MASTER_PORT");
  if (!address || !port) return reader.Copy("job", "", field);
  reader.Copy("MASTER_ADDR:MASTER_PORT", fmt::format("{}:{}", *address, *port), field);
}

// torchrun tells by LOCAL_WORLD_SIZE how many of the ranks are on this node.
void FillRendezvous(Reader& reader, std::uint32_t world_size, std::span<char> field) {
  if (const auto own = reader.Text("HEADRACE_RENDEZVOUS")) {
    return reader.Copy("HEADRACE_RENDEZVOUS", *own, field);
  }
  const std::uint32_t local = reader.Number("LOCAL_WORLD_SIZE", HR_UNSET);
  const std::string_view address = reader.Text("MASTER_ADDR").value_or("");
  const bool spans_nodes = world_size != HR_UNSET && local < world_size;
  if (!spans_nodes) return reader.Copy("rendezvous", "", field);
  // An IPv6 address has colons of its own, and needs brackets where a port may follow.
  const bool bare = std::count(address.begin(), address.end(), ':') > 1 && address.front() != '[';
  reader.Copy("MASTER_ADDR", bare ? fmt::format("[{}]", address) : std::string(address), field);
}

void FillNodes(Reader& reader, hr_options& options) {
  FillRendezvous(reader, options.world_size, options.rendezvous);
  reader.Copy("HEADRACE_ARCHITECTURE", reader.Text("HEADRACE_ARCHITECTURE").value_or(""),
              options.architecture);
}

// A rank's process that torchrun starts again by itself joins the job, which has gone on without
// it.
std::uint32_t RoleNow(Reader& reader, std::uint32_t role) {
  if (role != HR_ROLE_REJOIN) return role;
  return reader.Number("TORCHELASTIC_RESTART_COUNT", 0) == 0 ? HR_ROLE_RANK : HR_ROLE_JOIN;
}

std::uint32_t RoleOf(Reader& reader) {
  return RoleNow(reader, reader.OneOf("HEADRACE_ROLE", kRoleNames));
}

void FillReconnect(Reader& reader, hr_options& options) {
  options.shrink_min_world = reader.Number("HEADRACE_SHRINK", 0);
  const bool shrinks = options.shrink_min_world != 0;
  options.reconnect_s = reader.Number("HEADRACE_RECONNECT", shrinks ? kDefaultReconnectS : 0);
  options.shrink_grace_ms = reader.Number("HEADRACE_SHRINK_GRACE_MS", kDefaultShrinkGraceMs);
  options.role = RoleOf(reader);
}

// "30" or "30:evict".
void FillSlow(Reader& reader, hr_options& options) {
  const auto [seconds, evicts] = reader.NumberAndWord("HEADRACE_SLOW", "evict");
  options.slow_bound_s = seconds;
  options.slow_evict = evicts ? 1 : 0;
}

void FillSendsClass(Reader& reader, hr_options& options) {
  reader.Copy("HEADRACE_SENDS_CLASS", reader.Text("HEADRACE_SENDS_CLASS").value_or(""),
              options.sends_class);
}

bool EndsInField(std::span<const char> field) {
  return std::find(field.begin(), field.end(), '\0') != field.end();
}

Status CheckJob(std::string_view job) {
  if (job.empty()) {
    return Error(Code::kInvalidArgument,
                 "no job name: give it in the options, or set HEADRACE_JOB to the same name on all "
                 "ranks");
  }
  const auto bad = [](char c) { return c <= ' ' || c > '~'; };
  if (std::any_of(job.begin(), job.end(), bad)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("job name \"{}\": only printable ASCII without blanks is possible", job));
  }
  return {};
}

Status CheckSlow(const hr_options& options) {
  if (options.slow_bound_s > kSlowBoundMaxS) {
    return Error(Code::kInvalidArgument,
                 fmt::format("slow_bound_s {} (HEADRACE_SLOW): 1 to {} seconds are possible, and 0 "
                             "for no bound",
                             options.slow_bound_s, kSlowBoundMaxS));
  }
  if (options.slow_evict > 1) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("slow_evict {}: 0 (slow ranks are named) and 1 (and evicted) are known",
                    options.slow_evict));
  }
  if (options.slow_evict == 0) return {};
  if (options.slow_bound_s == 0) {
    return Error(Code::kInvalidArgument,
                 "slow_evict without slow_bound_s: say for how many seconds a rank is slow before "
                 "it is evicted");
  }
  if (options.shrink_min_world == 0) {
    return Error(
        Code::kInvalidArgument,
        "slow ranks are to be evicted (slow_evict, HEADRACE_SLOW) from a job that does not "
        "go on without them: say with how many ranks it may (shrink_min_world, "
        "HEADRACE_SHRINK)");
  }
  return {};
}

Status CheckNodes(const hr_options& options) {
  const std::string_view rendezvous = options.rendezvous;
  const auto bad = [](char c) { return c <= ' ' || c > '~'; };
  if (std::any_of(rendezvous.begin(), rendezvous.end(), bad)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("rendezvous \"{}\": give host or host:port of a node's service, "
                             "without blanks",
                             rendezvous));
  }
  const std::string_view sends = options.sends_class;
  if (!sends.empty() && !SendsClassOf(sends)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("sends_class \"{}\": there are above and same", sends));
  }
  const std::string_view architecture = options.architecture;
  if (architecture.empty() || ArchitectureNamed(architecture)) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("unknown architecture \"{}\" (known: {})", architecture,
                           fmt::join(kArchitectureNames, ", ")));
}

bool IsKnown(std::size_t size) {
  return size == sizeof(hr_options) || size == kFifthOptionsSize || size == kFourthOptionsSize ||
         size == kThirdOptionsSize || size == kSecondOptionsSize || size == kFirstOptionsSize;
}

Error UnknownSize(std::size_t size) {
  return Error(Code::kInvalidArgument,
               fmt::format("hr_options has size {}, this library ({}) knows {}: call "
                           "hr_options_init first, and compile against this library's header",
                           size, HEADRACE_VERSION, sizeof(hr_options)));
}

}  // namespace

Status FillOptions(const Environment& environment, hr_options& options) {
  std::memset(&options, 0, sizeof options);
  Reader reader(environment);
  options.size = sizeof options;
  reader.Copy("HEADRACE_SOCKET", reader.Text("HEADRACE_SOCKET").value_or(kDefaultSocket),
              options.socket_path);
  FillJob(reader, options.job);
  options.rank = reader.Number("RANK", HR_UNSET);
  options.world_size = reader.Number("WORLD_SIZE", HR_UNSET);
  options.timeout_ms = reader.Number("HEADRACE_TIMEOUT_MS", 0);
  options.spin_us = reader.Number("HEADRACE_SPIN_US", 0);
  options.call_timeout_ms = kDefaultCallTimeoutMs;
  FillNodes(reader, options);
  FillReconnect(reader, options);
  FillSendsClass(reader, options);
  FillSlow(reader, options);
  return reader.status();
}

std::string RendezvousSource(const Environment& environment, const hr_options& options) {
  const std::string_view given = options.rendezvous;
  if (given.empty()) return {};
  Reader reader(environment);
  if (reader.Text("HEADRACE_RENDEZVOUS") == given) return "HEADRACE_RENDEZVOUS";
  hr_options found{};
  FillRendezvous(reader, options.world_size, found.rendezvous);
  return given == found.rendezvous ? "MASTER_ADDR" : "the argument rendezvous";
}

Status FillSizedOptions(const Environment& environment, std::size_t size, hr_options& options) {
  if (!IsKnown(size)) return UnknownSize(size);
  hr_options whole;
  const Status status = FillOptions(environment, whole);
  whole.size = size;
  std::memcpy(&options, &whole, size);
  return status;
}

Result<hr_options> WholeOptions(const Environment& environment, const hr_options& given) {
  if (!IsKnown(given.size)) return UnknownSize(given.size);
  Reader reader(environment);
  if (given.size == sizeof given) {
    hr_options same = given;
    same.role = RoleNow(reader, given.role);
    if (Status status = reader.status(); !status) return status.error();
    return same;
  }
  hr_options whole;
  std::memset(&whole, 0, sizeof whole);
  std::memcpy(&whole, &given, given.size);
  whole.size = sizeof whole;
  if (given.size == kFirstOptionsSize) FillNodes(reader, whole);
  if (given.size < kFourthOptionsSize) {
    const std::uint32_t reconnect_s = whole.reconnect_s;
    FillReconnect(reader, whole);
    if (given.size == kThirdOptionsSize) whole.reconnect_s = reconnect_s;
  }
  if (given.size == kFourthOptionsSize) whole.role = RoleOf(reader);
  if (given.size < kFifthOptionsSize) FillSendsClass(reader, whole);
  FillSlow(reader, whole);
  whole.role = RoleNow(reader, whole.role);
  if (Status status = reader.status(); !status) return status.error();
  return whole;
}

Status FillLayoutOptions(const Environment& environment, std::size_t size,
                         hr_layout_options& options) {
  if (size != sizeof options) {
    return Error(Code::kInvalidArgument,
                 fmt::format("hr_layout_options has size {}, this library ({}) knows {}: compile "
                             "against this library's header",
                             size, HEADRACE_VERSION, sizeof options));
  }
  std::memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.reduction = HR_AVERAGE;
  Reader reader(environment);
  reader.Copy("HEADRACE_POLICY", reader.Text("HEADRACE_POLICY").value_or(""), options.policy);
  reader.Copy("HEADRACE_COMPRESS", reader.Text("HEADRACE_COMPRESS").value_or(""), options.codec);
  return reader.status();
}

Status CheckOptions(const hr_options& options) {
  if (options.size != sizeof options) return UnknownSize(options.size);
  if (!EndsInField(options.socket_path) || !EndsInField(options.job) ||
      !EndsInField(options.program) || !EndsInField(options.rendezvous) ||
      !EndsInField(options.architecture) || !EndsInField(options.sends_class)) {
    return Error(Code::kInvalidArgument, "a text in hr_options does not end in NUL");
  }
  if (Status status = CheckJob(options.job); !status) return status;
  if (options.role > HR_ROLE_SPARE) {
    return Error(Code::kInvalidArgument,
                 fmt::format("role {}: {} (rank) to {} (rejoin) are known", options.role,
                             static_cast<int>(HR_ROLE_RANK), static_cast<int>(HR_ROLE_REJOIN)));
  }
  if (options.call_timeout_ms == 0) {
    return Error(Code::kInvalidArgument, "call_timeout_ms is 0: no answer can come in that time");
  }
  if (Status status = CheckSlow(options); !status) return status;
  if (options.role != HR_ROLE_RANK) return CheckNodes(options);
  if (options.rank == HR_UNSET || options.world_size == HR_UNSET) {
    return Error(Code::kInvalidArgument,
                 fmt::format("no {}: give it in the options, or start through torchrun, which sets "
                             "RANK and WORLD_SIZE",
                             options.rank == HR_UNSET ? "rank" : "world size"));
  }
  if (options.rank >= options.world_size) {
    return Error(Code::kInvalidArgument,
                 fmt::format("rank {} of {}: ranks go from 0 to world size - 1", options.rank,
                             options.world_size));
  }
  return CheckNodes(options);
}

}  // namespace headrace::client
