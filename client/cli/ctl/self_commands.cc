// help and version as commands, and what is said of a line that makes no sense.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/table.h"
#include "ipc/base/foreign_text.h"
#include "ipc/base/nearest_name.h"

namespace headrace::ctl {
namespace {

const CLI::App* Descend(const CLI::App& app, const std::vector<std::string>& path) {
  const CLI::App* command = &app;
  for (const std::string& name : path) {
    const auto named =
        command->get_subcommands([&name](const CLI::App* each) { return each->check_name(name); });
    if (named.empty()) return nullptr;
    command = named.front();
  }
  return command;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
  }
  return names;
}

// The long options of the command and of those above it, which may stand behind it too.
std::vector<std::string> FlagsOf(const CLI::App* command) {
  std::vector<std::string> flags;
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  return flags;
}

// The innermost command that the line names.
const CLI::App& NamedCommand(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  return *command;
}

std::string Unknown(const char* what, const std::string& word,
                    const std::vector<std::string>& known, const std::string& lists) {
  const std::string nearest = NearestName(word, known);
  return fmt::format("unknown {} \"{}\": {}", what, Printable(word),
                     nearest.empty() ? fmt::format("{} lists what there is", lists)
                                     : fmt::format("did you mean {}?", nearest));
}

int Help(const Program& program, const std::vector<std::string>& path) {
  const CLI::App* command = Descend(program.app, path);
  if (command == nullptr) {
    Complain(Unknown("command", fmt::format("{}", fmt::join(path, " ")), CommandsOf(program.app),
                     "headracectl help"));
    return kExitUsage;
  }
  // App::help would go on to the command that runs, which is this one.
  std::string before;
  for (const CLI::App* each = command->get_parent(); each != nullptr; each = each->get_parent()) {
    before = before.empty() ? each->get_name() : each->get_name() + " " + before;
  }
  Print(command->get_formatter()->make_help(
      command, before + (before.empty() ? "" : " ") + command->get_name(),
      CLI::AppFormatMode::Normal));
  return kExitOk;
}

}  // namespace

void AddSelfCommands(const Program& program, const std::string& version) {
  const auto path = std::make_shared<std::vector<std::string>>();
  AddCommand(program, "help", "prints the help of a command", {"help", "help queue"},
             [program, path] { return Help(program, *path); })
      ->add_option("command", *path, "name of a command; without one, all commands are listed");
  AddCommand(program, "version", "prints the version and the versions of the protocols",
             {"version"}, [version] {
               Print(version + "\n");
               return kExitOk;
             });
}

std::string ExplainLine(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = NamedCommand(app);
  std::string help = "--help";
  for (const CLI::App* each = &command; each != &app; each = each->get_parent()) {
    help = each->get_name() + " " + help;
  }
  help = "headracectl " + help;
  const std::vector<std::string> left = app.remaining(true);
  // What is left over is not what is wrong where a value is missing or no good.
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool lacks_command =
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !CommandsOf(command).empty();
  if (!left.empty() && (is_extra || lacks_command)) {
    const std::string word = left.front().substr(0, left.front().find('='));
    if (word.starts_with("-")) return Unknown("option", word, FlagsOf(&command), help);
    if (lacks_command) return Unknown("command", word, CommandsOf(command), help);
    return fmt::format("\"{}\" is one word too many: {} lists what is accepted", Printable(word),
                       help);
  }
  if (lacks_command) return fmt::format("no command was named: {} lists them", help);
  return fmt::format("{}: {} lists what is accepted", error.what(), help);
}

}  // namespace headrace::ctl
