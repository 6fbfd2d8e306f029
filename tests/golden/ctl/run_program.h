// headracectl as a person runs it.
#pragma once

#include <string>

namespace headrace::ctl {

struct Ran {
  int exit_code = -1;
  std::string output;  // stdout and stderr
};

Ran RunProgram(const std::string& arguments, const std::string& environment = "");
// The same for any command of the shell.
Ran RunCommand(const std::string& command);

}  // namespace headrace::ctl
