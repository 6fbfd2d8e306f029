/* What posting costs its caller: CPU time of the posting thread, and doorbells (system calls that
 * wake the service). A job of one rank posts batches on parts of a registered tensor; before each
 * batch one operation is waited for, so that the service has just been at work.
 *
 * usage: bench_posting SOCKET BATCHES
 *
 * Prints one JSON object. Around each batch stands a getppid, which nothing else here calls: under
 * strace the system calls that posting makes are those between two of them.
 */
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kBatchSize = 512, kBatchesMax = 100000, kRangeCount = 64 };
/* Open operations may not overlap: each has a range of its own, the one before the batch too. */
enum { kElementCount = (kBatchSize + 1) * kRangeCount };

static int failed(const char* doing, const hr_error* error) {
  fprintf(stderr, "%s: %s\n", doing, error->text);
  return 1;
}

static int64_t thread_cpu_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

static int compare(const void* left, const void* right) {
  const int64_t a = *(const int64_t*)left;
  const int64_t b = *(const int64_t*)right;
  return (a > b) - (a < b);
}

/* One batch: its thread CPU time in *cost_ns. */
static int post_batch(hr_session* session, hr_tensor* tensor, int64_t* cost_ns) {
  hr_error error;
  hr_operation operation;
  const hr_range first = {.offset = kBatchSize * kRangeCount, .count = kRangeCount};
  if (hr_all_reduce(session, tensor, &first, HR_SUM, &operation, &error) != HR_OK ||
      hr_wait(session, operation, -1, &error) != HR_OK)
    return failed("first operation of a batch", &error);
  syscall(SYS_getppid);
  const int64_t start = thread_cpu_ns();
  for (int i = 0; i < kBatchSize; ++i) {
    const hr_range range = {.offset = (uint64_t)i * kRangeCount, .count = kRangeCount};
    if (hr_all_reduce(session, tensor, &range, HR_SUM, &operation, &error) != HR_OK)
      return failed("post", &error);
  }
  *cost_ns = thread_cpu_ns() - start;
  syscall(SYS_getppid);
  if (hr_wait(session, operation, -1, &error) != HR_OK) return failed("wait", &error);
  return 0;
}

static int post_batches(hr_session* session, hr_tensor* tensor, int batches) {
  int64_t* costs = malloc((size_t)batches * sizeof *costs);
  if (costs == NULL) return 1;
  hr_counters before = {.size = sizeof before};
  hr_counters after = {.size = sizeof after};
  hr_session_counters(session, &before, NULL);
  for (int i = 0; i < batches; ++i)
    if (post_batch(session, tensor, &costs[i]) != 0) return 1;
  hr_session_counters(session, &after, NULL);
  qsort(costs, (size_t)batches, sizeof *costs, compare);
  const double batch_size = kBatchSize;
  printf("{\"posts\": %d, \"cpu_ns_p50\": %.1f, \"cpu_ns_p99\": %.1f, ", batches * kBatchSize,
         (double)costs[batches / 2] / batch_size,
         (double)costs[(batches * 99 + 99) / 100 - 1] / batch_size);
  /* Also counts the operation before each batch, which may well find the service asleep. */
  printf("\"operations\": %" PRIu64 ", \"doorbells\": %" PRIu64 ", \"full_waits\": %" PRIu64 "}\n",
         after.posted - before.posted, after.doorbells - before.doorbells,
         after.full_waits - before.full_waits);
  free(costs);
  return 0;
}

int main(int argc, char** argv) {
  const int batches = argc == 3 ? atoi(argv[2]) : 0;
  if (batches < 1 || batches > kBatchesMax) {
    fprintf(stderr, "usage: bench_posting SOCKET BATCHES\n");
    return 2;
  }
  hr_error error;
  hr_options options;
  if (hr_options_init(&options, &error) != HR_OK) return failed("options", &error);
  snprintf(options.socket_path, sizeof options.socket_path, "%s", argv[1]);
  snprintf(options.job, sizeof options.job, "posting");
  options.rank = 0;
  options.world_size = 1;
  hr_session* session = NULL;
  hr_segment* segment = NULL;
  hr_tensor* tensor = NULL;
  if (hr_open(&options, &session, &error) != HR_OK) return failed("open", &error);
  if (hr_segment_create(session, kElementCount * sizeof(float), &segment, &error) != HR_OK)
    return failed("segment", &error);
  const hr_tensor_spec spec = {
      .segment = segment, .count = kElementCount, .dtype = HR_FLOAT32, .name = "posted"};
  if (hr_tensor_register(session, &spec, &tensor, &error) != HR_OK)
    return failed("register", &error);
  const int status = post_batches(session, tensor, batches);
  if (hr_close(session, &error) != HR_OK) return failed("close", &error);
  return status;
}
