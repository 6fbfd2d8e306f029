// The script for fish: one declaration for each thing that can be typed.
#include <fmt/format.h>

#include <sstream>

#include "client/cli/ctl/completion/spec.h"

namespace headrace::ctl {
namespace {

std::string QuotedForFish(const std::string& text) {
  std::string quoted = "'";
  for (const char byte : text) {
    if (byte == '\'' || byte == '\\') quoted += '\\';
    quoted += byte;
  }
  return quoted + "'";
}

// Holds where `path` is what was typed, and none of `commands` after it.
std::string Condition(const CommandSpec& command) {
  std::istringstream words(command.path);
  std::string condition;
  for (std::string word; words >> word;) {
    condition +=
        fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ", word);
  }
  if (!command.commands.empty()) {
    condition += fmt::format("{}not __fish_seen_subcommand_from {}",
                             condition.empty() ? "" : "; and ", fmt::join(command.commands, " "));
  }
  return condition;
}

std::string Values(const OptionSpec& option) {
  switch (option.argument) {
    case ArgumentKind::kNothing:
      return "";
    case ArgumentKind::kAnything:
      return " -x";
    case ArgumentKind::kFile:
      return " -r -F";
    case ArgumentKind::kChoice:
      return fmt::format(" -x -a {}",
                         QuotedForFish(fmt::format("{}", fmt::join(option.choices, " "))));
    case ArgumentKind::kJob:
      return " -x -a '(__headracectl_names jobs)'";
    case ArgumentKind::kLane:
      return " -x -a '(__headracectl_names lanes)'";
  }
  return "";
}

std::string Declare(const std::string& condition, const std::string& what,
                    const std::string& help) {
  const std::string when = condition.empty() ? "" : " -n " + QuotedForFish(condition);
  return fmt::format("complete -c headracectl{}{} -d {}\n", when, what, QuotedForFish(help));
}

std::string DeclareFlags(const OptionSpec& option) {
  std::string what;
  for (const std::string& flag : option.flags) {
    what += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
  }
  return what + Values(option);
}

constexpr const char* kNames = R"SH(
# Names on the board of the service that is meant; nothing while there is none.
function __headracectl_names
    set -l places
    set -l tokens (commandline -opc)
    for i in (seq (count $tokens))
        if contains -- $tokens[$i] --board --socket; and test $i -lt (count $tokens)
            set places $places $tokens[$i] $tokens[(math $i + 1)]
        end
    end
    $tokens[1] $places $argv[1] --no-header 2>/dev/null | cut -d ' ' -f 1
end

complete -c headracectl -f
)SH";

}  // namespace

std::string FishCompletion(const ProgramSpec& program) {
  std::string text = "# Completion of headracectl for fish, made by headracectl completion fish.\n";
  text += kNames;
  for (const CommandSpec& command : program) {
    const std::string condition = Condition(command);
    for (const std::string& next : command.commands) {
      const std::string path = command.path.empty() ? next : command.path + " " + next;
      for (const CommandSpec& other : program) {
        if (other.path == path) text += Declare(condition, " -a " + next, other.help);
      }
    }
    // The program's own options stand after commands too.
    const std::string where = command.path.empty() ? "" : condition;
    for (const OptionSpec& option : command.options) {
      text += Declare(where, DeclareFlags(option), option.help);
    }
    for (const OptionSpec& word : command.words) {
      if (word.argument != ArgumentKind::kAnything) text += Declare(where, Values(word), word.help);
    }
  }
  return text;
}

}  // namespace headrace::ctl
