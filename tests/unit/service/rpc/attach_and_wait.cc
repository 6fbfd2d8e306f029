// A process that attaches, says so, and waits to be killed. Arguments: socket path, rank.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/unit/service/rpc/caller.h"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  headrace::support::CallerLoop loop;
  headrace::support::Caller caller(loop, arguments[1]);
  headrace::support::AttachCall fields;
  fields.rank = static_cast<std::uint32_t>(std::strtoul(arguments[2], nullptr, 10));
  const auto attached = caller.Attach(fields);
  std::printf("%s\n", attached.code == headrace::Code::kOk ? "attached" : attached.text.c_str());
  std::fflush(stdout);
  ::pause();
}
