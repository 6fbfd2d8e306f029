// What can be typed after the program's name, read off the command line's own tree, and the scripts
// that tell a shell. Pure: a command that is added to the program is in all three.
#pragma once

#include <string>
#include <vector>

namespace headrace::ctl {

// What a value is, beyond its text.
enum class ArgumentKind { kNothing, kAnything, kChoice, kJob, kLane, kFile };

struct OptionSpec {
  std::vector<std::string> flags;  // "-w", "--watch"; empty: a word without a flag
  ArgumentKind argument = ArgumentKind::kNothing;
  std::vector<std::string> choices;  // of kChoice
  std::string help;
};

struct CommandSpec {
  std::string path;  // "queue", "certs node"; empty: the program
  std::string help;
  std::vector<OptionSpec> options;
  std::vector<OptionSpec> words;      // by place
  std::vector<std::string> commands;  // that may follow
};

// The program first, then its commands; each before its own.
using ProgramSpec = std::vector<CommandSpec>;

std::string BashCompletion(const ProgramSpec& program);
std::string ZshCompletion(const ProgramSpec& program);
std::string FishCompletion(const ProgramSpec& program);

}  // namespace headrace::ctl
