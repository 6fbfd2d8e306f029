/* One rank of a job under load: averages tensors again and again, several of them at a time, until
 * it is ended by a signal. Every result's first and last element are looked at; a wrong one ends it
 * with exit status 1.
 *
 * usage: bench_load SOCKET JOB RANK RANKS BYTES DEPTH [STOP_AFTER]
 *
 * DEPTH operations are posted at any time. After STOP_AFTER operations it posts nothing more and
 * stays attached: what a rank that hangs looks like from outside.
 */
#include <headrace/headrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kDepthMax = 64 };

struct load {
  hr_session* session;
  hr_segment* segment;
  hr_tensor* tensors[kDepthMax];
  hr_operation open[kDepthMax];
  size_t count; /* elements of each */
  int depth;
  float average; /* of all ranks' numbers */
};

static int failed(const char* doing, const hr_error* error) {
  fprintf(stderr, "%s: %s\n", doing, error->text);
  return 1;
}

/* Every rank brings its number plus 1; what comes out stays what it is from then on. */
static int prepare(struct load* load, size_t bytes, float value) {
  hr_error error;
  if (hr_segment_create(load->session, bytes * (size_t)load->depth, &load->segment, &error) !=
      HR_OK)
    return failed("segment", &error);
  for (int i = 0; i < load->depth; ++i) {
    const hr_tensor_spec spec = {.segment = load->segment,
                                 .offset = bytes * (size_t)i,
                                 .count = load->count,
                                 .dtype = HR_FLOAT32,
                                 .name = "load"};
    if (hr_tensor_register(load->session, &spec, &load->tensors[i], &error) != HR_OK)
      return failed("register", &error);
    float* memory = hr_tensor_address(load->tensors[i]);
    for (size_t k = 0; k < load->count; ++k) memory[k] = value;
  }
  return 0;
}

static int finish(struct load* load, int slot) {
  hr_error error;
  if (hr_wait(load->session, load->open[slot], -1, &error) != HR_OK) return failed("wait", &error);
  const float* memory = hr_tensor_address(load->tensors[slot]);
  if (memory[0] == load->average && memory[load->count - 1] == load->average) return 0;
  fprintf(stderr, "an average is wrong: %g and %g in place of %g\n", (double)memory[0],
          (double)memory[load->count - 1], (double)load->average);
  return 1;
}

static int run(struct load* load, long stop_after) {
  hr_error error;
  for (long posted = 0; stop_after == 0 || posted < stop_after; ++posted) {
    const int slot = (int)(posted % load->depth);
    if (posted >= load->depth && finish(load, slot) != 0) return 1;
    if (hr_all_reduce(load->session, load->tensors[slot], NULL, HR_AVERAGE, &load->open[slot],
                      &error) != HR_OK)
      return failed("post", &error);
  }
  for (;;) pause();
}

int main(int argc, char** argv) {
  const size_t bytes = argc >= 7 ? (size_t)atol(argv[5]) : 0;
  const int depth = argc >= 7 ? atoi(argv[6]) : 0;
  if (argc < 7 || argc > 8 || bytes < sizeof(float) || depth < 1 || depth > kDepthMax) {
    fprintf(stderr, "usage: bench_load SOCKET JOB RANK RANKS BYTES DEPTH [STOP_AFTER]\n");
    return 2;
  }
  hr_error error;
  hr_options options;
  if (hr_options_init(&options, &error) != HR_OK) return failed("options", &error);
  snprintf(options.socket_path, sizeof options.socket_path, "%s", argv[1]);
  snprintf(options.job, sizeof options.job, "%s", argv[2]);
  options.rank = (uint32_t)atoi(argv[3]);
  options.world_size = (uint32_t)atoi(argv[4]);
  struct load load = {.count = bytes / sizeof(float),
                      .depth = depth,
                      .average = (float)(options.world_size + 1) / 2};
  if (hr_open(&options, &load.session, &error) != HR_OK) return failed("open", &error);
  if (prepare(&load, bytes, (float)(options.rank + 1)) != 0) return 1;
  return run(&load, argc == 8 ? atol(argv[7]) : 0);
}
