#include "client/cli/ctl/words.h"

namespace headrace::ctl {

std::string JobStateWords(const ipc::JobRow& job) {
  std::string words(JobStateName(job.state));
  if (job.paused != 0) words += ", paused";
  if (job.draining != 0) words += ", draining";
  return words;
}

}  // namespace headrace::ctl
