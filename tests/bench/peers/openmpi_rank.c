/* Peer: one rank of Open MPI, MPI_Allreduce in place. Started by mpirun with the FIFOs' folder. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/peers/rounds.h"

enum { kPageSize = 4096 };

struct rank {
  float* memory;
  size_t count;
};

static int prepare(void* state, size_t count) {
  struct rank* rank = state;
  if (rank->count == count) return 0;
  free(rank->memory);
  rank->count = count;
  const size_t pages = (count * sizeof(float) + kPageSize - 1) / kPageSize;
  rank->memory = aligned_alloc(kPageSize, pages * kPageSize);
  return rank->memory != NULL ? 0 : 1;
}

static float* memory(void* state, int rank_number) {
  (void)rank_number;
  return ((struct rank*)state)->memory;
}

static int all_reduce(void* state) {
  struct rank* rank = state;
  return MPI_Allreduce(MPI_IN_PLACE, rank->memory, (int)rank->count, MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD) == MPI_SUCCESS
             ? 0
             : 1;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) {
    fprintf(stderr, "usage: mpirun -np RANKS openmpi_rank FOLDER\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  struct rank rank = {NULL, 0};
  struct bench_contender contender = {.state = &rank,
                                      .rank_count = 1,
                                      .prepare = prepare,
                                      .memory = memory,
                                      .all_reduce = all_reduce};
  MPI_Comm_rank(MPI_COMM_WORLD, &contender.first_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &contender.world_size);
  const int status = bench_serve(argv[1], &contender);
  MPI_Finalize();
  free(rank.memory);
  return status;
}
