// `headracectl completion SHELL`: reads the command line's tree and writes a shell's script.
#include <algorithm>
#include <memory>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/completion/spec.h"

namespace headrace::ctl {
namespace {

// IsMember shows itself as "{a,b}" in the type's name.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{');
  const std::size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

// Names tell what a value is: all commands use them alike.
ArgumentKind KindOf(const CLI::Option& option, bool has_choices) {
  if (!option.get_positional() && option.get_expected_max() == 0) return ArgumentKind::kNothing;
  if (has_choices) return ArgumentKind::kChoice;
  const std::string name = option.get_single_name();
  if (name == "job") return ArgumentKind::kJob;
  if (name == "lane") return ArgumentKind::kLane;
  constexpr const char* kFiles[] = {"board", "socket", "out",     "output",       "authority",
                                    "file",  "trace",  "profile", "mps-directory"};
  const bool is_file = std::find(std::begin(kFiles), std::end(kFiles), name) != std::end(kFiles);
  return is_file ? ArgumentKind::kFile : ArgumentKind::kAnything;
}

OptionSpec MakeOption(const CLI::Option& option) {
  OptionSpec spec;
  for (const std::string& name : option.get_snames()) spec.flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) spec.flags.push_back("--" + name);
  spec.choices = ChoicesOf(option);
  spec.argument = KindOf(option, !spec.choices.empty());
  spec.help = option.get_description();
  return spec;
}

void AddTo(ProgramSpec& program, const CLI::App& app, const std::string& path) {
  CommandSpec command{
      .path = path, .help = app.get_description(), .options = {}, .words = {}, .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    (option->get_positional() ? command.words : command.options).push_back(MakeOption(*option));
  }
  const auto every = [](const CLI::App*) { return true; };
  const std::vector<const CLI::App*> subcommands = app.get_subcommands(every);
  for (const CLI::App* next : subcommands) command.commands.push_back(next->get_name());
  program.push_back(std::move(command));
  for (const CLI::App* next : subcommands) {
    AddTo(program, *next, path.empty() ? next->get_name() : path + " " + next->get_name());
  }
}

}  // namespace

void AddCompletionCommand(const Program& program) {
  const auto shell = std::make_shared<std::string>();
  AddCommand(program, "completion",
             "prints a script that completes this program's arguments in a shell",
             {"completion bash", "completion fish"},
             [&app = program.app, shell] {
               ProgramSpec spec;
               AddTo(spec, app, "");
               Print(*shell == "bash"  ? BashCompletion(spec)
                     : *shell == "zsh" ? ZshCompletion(spec)
                                       : FishCompletion(spec));
               return kExitOk;
             })
      ->add_option("shell", *shell, "shell that the script is for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace headrace::ctl
