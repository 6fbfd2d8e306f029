// `headracectl certs ...`: options in, text and exit code out.
#pragma once

#include <CLI/CLI.hpp>

namespace headrace::ctl {

// Adds the command to `app`; the command that runs sets `exit_code`. Both, and `json`, outlive the
// parsing.
void AddCertsCommand(CLI::App& app, const bool& json, int& exit_code);

}  // namespace headrace::ctl
