// The scripts for bash and zsh. Both walk the words typed so far with the same functions, which
// only use what the two shells have in common; they differ in how candidates are handed over.
#include <fmt/format.h>

#include "client/cli/ctl/completion/spec.h"

namespace headrace::ctl {
namespace {

// A word of a case pattern or a list, as both shells take it.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char byte : text) quoted += byte == '\'' ? std::string("'\\''") : std::string(1, byte);
  return quoted + "'";
}

std::string Flags(const CommandSpec& command) {
  std::string flags;
  for (const OptionSpec& option : command.options) {
    for (const std::string& flag : option.flags) flags += (flags.empty() ? "" : " ") + flag;
  }
  return flags;
}

// What a function prints for a value: a list, or the answer of the program.
std::string Answer(const OptionSpec& option) {
  switch (option.argument) {
    case ArgumentKind::kChoice:
      return fmt::format("echo {}", Quoted(fmt::format("{}", fmt::join(option.choices, " "))));
    case ArgumentKind::kJob:
      return "_headracectl_names jobs";
    case ArgumentKind::kLane:
      return "_headracectl_names lanes";
    case ArgumentKind::kFile:
      return "echo ':files'";
    case ArgumentKind::kNothing:
    case ArgumentKind::kAnything:
      break;
  }
  return ":";
}

// case COMMAND in ... lists of what may follow.
std::string Tables(const ProgramSpec& program) {
  std::string commands;
  std::string flags;
  std::string values;
  std::string words;
  for (const CommandSpec& command : program) {
    const std::string key = Quoted(command.path);
    if (!command.commands.empty()) {
      commands += fmt::format("    {}) echo {} ;;\n", key,
                              Quoted(fmt::format("{}", fmt::join(command.commands, " "))));
    }
    flags += fmt::format("    {}) echo {} ;;\n", key, Quoted(Flags(command)));
    for (const OptionSpec& option : command.options) {
      if (option.argument == ArgumentKind::kNothing) continue;
      for (const std::string& flag : option.flags) {
        values += fmt::format("    {}) {} ;;\n", Quoted(command.path + ":" + flag), Answer(option));
      }
    }
    for (std::size_t i = 0; i < command.words.size(); ++i) {
      words += fmt::format("    {}) {} ;;\n", Quoted(fmt::format("{}:{}", command.path, i)),
                           Answer(command.words[i]));
    }
  }
  const auto function = [](const char* name, const std::string& cases, const char* otherwise) {
    return fmt::format("_headracectl_{}() {{\n  case \"$1\" in\n{}    *) {} ;;\n  esac\n}}\n", name,
                       cases, otherwise);
  };
  return function("commands", commands, ":") + function("flags", flags, ":") +
         function("value", values, "return 1") + function("word", words, ":");
}

// Walks the words before the one that is typed: `typed` is the command so far (`path` is zsh's
// own), `place` how many words it has, and `headracectl_places` the options that say which service
// is meant.
constexpr const char* kWalk = R"SH(
# Names on the board of the service that is meant; nothing while there is none.
_headracectl_names() {
  "$headracectl_program" "${headracectl_places[@]}" "$1" --no-header 2>/dev/null | cut -d ' ' -f 1
}

# Prints what may stand in place of the last argument, after those before it.
_headracectl_candidates() {
  local headracectl_program=$1 typed='' place=0 word option=''
  local -a headracectl_places
  headracectl_places=()
  shift
  while [ $# -gt 1 ]; do
    word=$1
    shift
    if [ -n "$option" ]; then
      case "$option" in
        --board|--socket) headracectl_places+=("$option" "$word") ;;
      esac
      option=''
      continue
    fi
    case "$word" in
      -*)
        # An option that takes a value, of the command or of the program.
        if _headracectl_value "$typed:$word" >/dev/null || _headracectl_value ":$word" >/dev/null; then
          option=$word
        fi
        continue ;;
    esac
    case " $(_headracectl_commands "$typed") " in
      *" $word "*) typed="${typed:+$typed }$word" ;;
      *) place=$((place + 1)) ;;
    esac
  done
  if [ -n "$option" ]; then
    _headracectl_value "$typed:$option" || _headracectl_value ":$option"
    return 0
  fi
  case "$1" in
    -*) echo "$(_headracectl_flags "$typed") $(_headracectl_flags '')" ;;
    *)
      _headracectl_commands "$typed"
      _headracectl_word "$typed:$place" ;;
  esac
}
)SH";

constexpr const char* kBash = R"SH(
_headracectl() {
  local typed=${COMP_WORDS[COMP_CWORD]} found
  found=$(_headracectl_candidates "${COMP_WORDS[@]:0:COMP_CWORD+1}")
  if [ "$found" = ':files' ]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$typed")
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$found" -- "$typed")
}
complete -o filenames -o nosort -F _headracectl headracectl
)SH";

constexpr const char* kZsh = R"SH(
_headracectl() {
  local found
  found=$(_headracectl_candidates "${(@)words[1,CURRENT]}")
  if [ "$found" = ':files' ]; then
    _files
    return
  fi
  compadd -- ${=found}
}
# Sourced, it declares itself; found in the path of functions, it is called.
if [ "${funcstack[1]}" = "_headracectl" ]; then
  _headracectl "$@"
else
  compdef _headracectl headracectl
fi
)SH";

}  // namespace

std::string BashCompletion(const ProgramSpec& program) {
  return "# Completion of headracectl for bash, made by headracectl completion bash.\n" +
         Tables(program) + kWalk + kBash;
}

std::string ZshCompletion(const ProgramSpec& program) {
  return "#compdef headracectl\n"
         "# Completion of headracectl for zsh, made by headracectl completion zsh.\n" +
         Tables(program) + kWalk + kZsh;
}

}  // namespace headrace::ctl
