#include "tests/bench/peers/rounds.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kPathSize = 4096, kRepetitionsMax = 1000000 };

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Small whole numbers, so that every order of adding gives the same float. */
static float element(size_t index) { return (float)(1 + index % 7); }

static void fill(const struct bench_contender* contender, size_t count) {
  for (int i = 0; i < contender->rank_count; ++i) {
    const int rank = contender->first_rank + i;
    float* memory = contender->memory(contender->state, rank);
    for (size_t k = 0; k < count; ++k) memory[k] = (float)(rank + 1) * element(k);
  }
}

static int sums_are_right(const struct bench_contender* contender, size_t count) {
  const float ranks = (float)contender->world_size;
  for (int i = 0; i < contender->rank_count; ++i) {
    const float* memory = contender->memory(contender->state, contender->first_rank + i);
    for (size_t k = 0; k < count; ++k)
      if (memory[k] != ranks * (ranks + 1) / 2 * element(k)) return 0;
  }
  return 1;
}

/* One all-reduce outside the measurement, with every element checked. */
static const char* checked_all_reduce(const struct bench_contender* contender, size_t count) {
  fill(contender, count);
  if (contender->all_reduce(contender->state) != 0) return "all_reduce failed";
  return sums_are_right(contender, count) ? NULL : "a sum is wrong";
}

/* The measured loop stands between two checked operations; the first is also the warm-up. Inside
 * it the memory holds zeros: repeated sums in place would soon overflow, and adding takes the same
 * time for every normal number. */
static const char* measure(const struct bench_contender* contender, size_t size, int64_t* times,
                           int repetitions) {
  const size_t count = size / sizeof(float);
  if (contender->prepare(contender->state, count) != 0) return "memory was refused";
  const char* failure = checked_all_reduce(contender, count);
  if (failure != NULL) return failure;
  for (int i = 0; i < contender->rank_count; ++i)
    memset(contender->memory(contender->state, contender->first_rank + i), 0, size);
  /* Ranks leave the check at different times; one more operation brings them together. */
  if (contender->all_reduce(contender->state) != 0) return "all_reduce failed";
  times[0] = now_ns();
  for (int i = 1; i <= repetitions; ++i) {
    if (contender->all_reduce(contender->state) != 0) return "all_reduce failed";
    times[i] = now_ns();
  }
  return checked_all_reduce(contender, count);
}

static FILE* open_fifo(const char* folder, const char* name, int rank, const char* mode) {
  char path[kPathSize];
  snprintf(path, sizeof path, "%s/%s.%d", folder, name, rank);
  FILE* fifo = fopen(path, mode);
  if (fifo == NULL) perror(path);
  return fifo;
}

int bench_serve(const char* folder, const struct bench_contender* contender) {
  FILE* commands = open_fifo(folder, "command", contender->first_rank, "r");
  FILE* results = open_fifo(folder, "result", contender->first_rank, "w");
  if (commands == NULL || results == NULL) return 1;
  size_t size = 0;
  int repetitions = 0;
  while (fscanf(commands, "%zu %d", &size, &repetitions) == 2) {
    if (repetitions < 1 || repetitions > kRepetitionsMax) return 2;
    int64_t* times = malloc(((size_t)repetitions + 1) * sizeof *times);
    if (times == NULL) return 1;
    const char* failure = measure(contender, size, times, repetitions);
    fprintf(results, failure == NULL ? "ok" : "error %s", failure);
    for (int i = 0; failure == NULL && i <= repetitions; ++i)
      fprintf(results, " %" PRId64, times[i]);
    fprintf(results, "\n");
    fflush(results);
    free(times);
  }
  fclose(results);
  fclose(commands);
  return 0;
}
