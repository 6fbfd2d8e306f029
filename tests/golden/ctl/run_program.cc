#include "tests/golden/ctl/run_program.h"

#include <sys/wait.h>

#include <cstdio>

#include "ipc/base/check.h"

namespace headrace::ctl {

Ran RunCommand(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  HR_CHECK(pipe != nullptr, command);
  Ran ran;
  char buffer[4096];
  for (std::size_t size = 0; (size = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    ran.output.append(buffer, size);
  }
  const int status = ::pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

Ran RunProgram(const std::string& arguments, const std::string& environment) {
  return RunCommand(environment + " " + HEADRACECTL + " " + arguments);
}

}  // namespace headrace::ctl
