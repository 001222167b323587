/*
 * Rounds of MPI_Alltoall, timed one by one on rank 0, every byte checked outside the timed section: what `doorbell mesh
 * --collective all-to-all` does, by MPI. Arguments: bytes for each rank, rounds; a tenth as many go before, untimed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* What a rank has for another in a round, at a place. */
static unsigned char byte_of(int from, int to, int round, int at)
{
    return (unsigned char)(from * 89 + to * 31 + round * 7 + at);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int bytes = count > 1 ? atoi(arguments[1]) : 64;
    int rounds = count > 2 ? atoi(arguments[2]) : 100;
    if (bytes < 1 || rounds < 1) {
        fprintf(stderr, "usage: all-to-all BYTES ROUNDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int untimed = (rounds + 9) / 10;
    unsigned char *out = malloc((size_t)ranks * (size_t)bytes);
    unsigned char *in = malloc((size_t)ranks * (size_t)bytes);
    double *times = malloc((size_t)rounds * sizeof *times);
    if (!out || !in || !times)
        MPI_Abort(MPI_COMM_WORLD, 3);
    for (int round = 0; round < untimed + rounds; round++) {
        for (int to = 0; to < ranks; to++)
            for (int at = 0; at < bytes; at++)
                out[to * bytes + at] = byte_of(rank, to, round, at);
        double begin = MPI_Wtime();
        MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        double took = MPI_Wtime() - begin;
        if (round >= untimed)
            times[round - untimed] = took * 1e6;
        for (int from = 0; from < ranks; from++)
            for (int at = 0; at < bytes; at++)
                if (in[from * bytes + at] != byte_of(from, rank, round, at)) {
                    fprintf(stderr, "round %d: byte %d of rank %d is wrong\n", round, at, from);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
    }
    if (rank == 0) {
        qsort(times, (size_t)rounds, sizeof *times, ascending);
        printf("%d ranks, %d bytes, %d rounds: p50 %.1f us, p99 %.1f us\n", ranks, bytes, rounds, times[rounds / 2],
               times[rounds * 99 / 100]);
    }
    free(out);
    free(in);
    free(times);
    MPI_Finalize();
    return 0;
}
