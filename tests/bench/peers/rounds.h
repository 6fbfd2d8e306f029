/* What every contender written in C or C++ shares: waiting for the driver's commands, filling and
 * checking memory, and taking the time. One thread; nothing here is measured but bench_serve's
 * innermost loop.
 *
 * The driver gives each process two FIFOs in one folder: command.R, from which it reads lines
 * "BYTES REPETITIONS", and result.R, to which it writes "ok T0 T1 ... Tn" (nanoseconds of
 * CLOCK_MONOTONIC at which each operation had returned, T0 being the start) or "error TEXT".
 * Waiting on a FIFO costs no CPU, so that a contender that polls does so only while it is measured.
 */
#ifndef HEADRACE_TESTS_BENCH_PEERS_ROUNDS_H_
#define HEADRACE_TESTS_BENCH_PEERS_ROUNDS_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One contender's process. Ranks first_rank .. first_rank + rank_count - 1 live in it. */
struct bench_contender {
  void* state;
  int first_rank;
  int rank_count;
  int world_size;
  /* Makes `count` floats ready for every rank of this process; 0 or a failure. May be called again
   * with another count, and then may take back what it gave before. */
  int (*prepare)(void* state, size_t count);
  /* The memory of one rank of this process, valid until the next prepare. */
  float* (*memory)(void* state, int rank);
  /* Sums in place over all ranks; returns when this process's ranks have the result; 0 or a
   * failure. */
  int (*all_reduce)(void* state);
};

/* Serves commands from `folder` until the driver closes its end. Returns the exit status. */
int bench_serve(const char* folder, const struct bench_contender* contender);

#ifdef __cplusplus
}
#endif
#endif
