// `headracectl replay ...`: options in, text and exit code out.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headrace::replay {

// The program's own options that replay follows too. They outlive the parsing.
struct Globals {
  const std::string& socket_path;
  const std::string& board_path;
  const CLI::Option* board;  // to know whether somebody named one
  const bool& json;
};

// Adds the command to `app`; it sets `exit_code` when it is the one that runs.
void AddReplayCommand(CLI::App& app, Globals globals, int& exit_code);

}  // namespace headrace::replay
