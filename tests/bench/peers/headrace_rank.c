/* One rank through the service, in place on a registered tensor. C, so as not to measure Python.
 *
 * usage: bench_headrace FOLDER SOCKET RANK RANKS
 */
#include <headrace/headrace.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/peers/rounds.h"

static const size_t kSegmentSizeMax = (size_t)64 << 20;

struct rank {
  hr_session* session;
  hr_segment* segment;
  hr_tensor* tensor;
};

static int failed(const char* doing, const hr_error* error) {
  fprintf(stderr, "%s: %s\n", doing, error->text);
  return 1;
}

static int prepare(void* state, size_t count) {
  struct rank* rank = state;
  hr_error error;
  if (rank->tensor != NULL) {
    if (hr_tensor_count(rank->tensor) == count) return 0;
    if (hr_tensors_release(rank->session, &rank->tensor, 1, &error) != HR_OK)
      return failed("release the tensor", &error);
    rank->tensor = NULL;
  }
  const hr_tensor_spec spec = {
      .segment = rank->segment, .count = count, .dtype = HR_FLOAT32, .name = "bench"};
  if (hr_tensor_register(rank->session, &spec, &rank->tensor, &error) != HR_OK)
    return failed("register the tensor", &error);
  return 0;
}

static float* memory(void* state, int rank_number) {
  (void)rank_number;
  return hr_tensor_address(((struct rank*)state)->tensor);
}

static int all_reduce(void* state) {
  struct rank* rank = state;
  hr_error error;
  hr_operation operation;
  if (hr_all_reduce(rank->session, rank->tensor, NULL, HR_SUM, &operation, &error) != HR_OK)
    return failed("post", &error);
  if (hr_wait(rank->session, operation, -1, &error) != HR_OK) return failed("wait", &error);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: bench_headrace FOLDER SOCKET RANK RANKS\n");
    return 2;
  }
  hr_error error;
  hr_options options;
  if (hr_options_init(&options, &error) != HR_OK) return failed("options", &error);
  snprintf(options.socket_path, sizeof options.socket_path, "%s", argv[2]);
  snprintf(options.job, sizeof options.job, "bench");
  options.rank = (uint32_t)atoi(argv[3]);
  options.world_size = (uint32_t)atoi(argv[4]);

  struct rank rank = {NULL, NULL, NULL};
  if (hr_open(&options, &rank.session, &error) != HR_OK) return failed("open", &error);
  if (hr_segment_create(rank.session, kSegmentSizeMax, &rank.segment, &error) != HR_OK)
    return failed("segment", &error);
  const struct bench_contender contender = {.state = &rank,
                                            .first_rank = (int)options.rank,
                                            .rank_count = 1,
                                            .world_size = (int)options.world_size,
                                            .prepare = prepare,
                                            .memory = memory,
                                            .all_reduce = all_reduce};
  const int status = bench_serve(argv[1], &contender);
  if (hr_close(rank.session, &error) != HR_OK) return failed("close", &error);
  return status;
}
