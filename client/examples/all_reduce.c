/* all_reduce.c: every rank adds its gradients to those of all others, through headraced.
 *
 * With a service running (build/release/headraced --socket /tmp/headrace.sock), either let the
 * program fork its ranks:
 *
 *     HEADRACE_SOCKET=/tmp/headrace.sock build/release/all_reduce_example 4
 *
 * or start each rank yourself, with RANK, WORLD_SIZE and HEADRACE_JOB in its environment and no
 * argument. Each rank prints one line, in any order:
 *
 *     rank 2 of 4: 1048576 floats are 10 = 1 + .. + 4; waited 0.9 ms
 *
 * and the program ends with 0 when every rank got that result.
 */
#include <headrace/headrace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

static int fail(const char* doing, const hr_error* error) {
  fprintf(stderr, "%s: %s (%s)\n", doing, error->text, hr_status_name(error->code));
  return 1;
}

/* Memory, registration, one operation: what a training loop does once, and then every step. */
static int reduce(hr_session* session) {
  const uint32_t rank = hr_session_rank(session);
  const uint32_t ranks = hr_session_world_size(session);
  hr_error error;
  hr_segment* segment = NULL;
  if (hr_segment_create(session, COUNT * sizeof(float), &segment, &error) != HR_OK) {
    return fail("hr_segment_create", &error);
  }
  hr_tensor_spec spec = {0};
  spec.segment = segment;
  spec.count = COUNT;
  spec.dtype = HR_FLOAT32;
  spec.name = "gradients";
  hr_tensor* tensor = NULL;
  if (hr_tensor_register(session, &spec, &tensor, &error) != HR_OK) {
    return fail("hr_tensor_register", &error);
  }

  float* gradients = hr_tensor_address(tensor);
  for (size_t i = 0; i < COUNT; ++i) gradients[i] = (float)(rank + 1);
  hr_operation operation = 0;
  if (hr_all_reduce(session, tensor, NULL, HR_SUM, &operation, &error) != HR_OK) {
    return fail("hr_all_reduce", &error);
  }
  /* A training loop would compute the next gradients here. */
  if (hr_wait(session, operation, -1, &error) != HR_OK) return fail("hr_wait", &error);

  const float expected = (float)(ranks * (ranks + 1) / 2);
  for (size_t i = 0; i < COUNT; ++i) {
    if (gradients[i] != expected) {
      fprintf(stderr, "rank %" PRIu32 ": element %zu is %g, not %g\n", rank, i,
              (double)gradients[i], (double)expected);
      return 1;
    }
  }
  hr_counters counters = {0};
  counters.size = sizeof counters;
  if (hr_session_counters(session, &counters, &error) != HR_OK) {
    return fail("hr_session_counters", &error);
  }
  printf("rank %" PRIu32 " of %" PRIu32 ": %d floats are %g = 1 + .. + %" PRIu32
         "; waited %.1f ms\n",
         rank, ranks, COUNT, (double)expected, ranks, (double)counters.waited_ns / 1e6);
  return 0;
}

static int run_rank(const hr_options* options) {
  hr_error error;
  hr_session* session = NULL;
  if (hr_open(options, &session, &error) != HR_OK) return fail("hr_open", &error);
  int result = reduce(session);
  if (hr_close(session, &error) != HR_OK) result = fail("hr_close", &error);
  return result;
}

/* Each child opens a session of its own: sessions do not survive a fork. */
static int fork_ranks(hr_options* options, uint32_t ranks) {
  options->world_size = ranks;
  if (options->job[0] == '\0') snprintf(options->job, sizeof options->job, "example-%d", getpid());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      options->rank = rank;
      exit(run_rank(options));
    }
    if (child < 0) {
      perror("fork");
      return 1;
    }
  }
  int result = 0;
  int status = 0;
  while (wait(&status) > 0) {
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = 1;
  }
  return result;
}

int main(int argc, char** argv) {
  hr_options options;
  hr_error error;
  if (hr_options_init(&options, &error) != HR_OK) return fail("hr_options_init", &error);
  snprintf(options.program, sizeof options.program, "all_reduce_example");
  if (argc == 1) return run_rank(&options);
  const long ranks = strtol(argv[1], NULL, 10);
  if (argc != 2 || ranks < 1 || ranks > 64) {
    fprintf(stderr, "usage: %s [RANKS]  (1 to 64; without it, RANK and WORLD_SIZE are read)\n",
            argv[0]);
    return 2;
  }
  return fork_ranks(&options, (uint32_t)ranks);
}
