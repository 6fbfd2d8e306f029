#include "tests/contract/subject.h"

#include "ipc/base/check.h"

namespace headrace::transport {

void Subject::Post(const Transfer& transfer) {
  HR_CHECK(transport().Post(transfer, Now()) == PostResult::kAccepted, transfer.token);
}

std::vector<Completion> Subject::Collect(std::size_t count) {
  std::vector<Completion> completions;
  while (completions.size() < count) Step(completions);
  return completions;
}

Completion Subject::Run(const Transfer& transfer) {
  Post(transfer);
  return Collect(1).front();
}

}  // namespace headrace::transport
