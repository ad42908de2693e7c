/* Measure the peak of a machine: "peak N" prints "GFLOPS GB/s" of N threads, each on its own core.
 * GFLOPS: independent fused multiply-adds of whole vectors, enough of them to hide their latency.
 * GB/s: reading 256 MiB per thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define SUMS 12
#define STEPS 20000000L
#define FLOATS (64L << 20)

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4 * LANES)));
static pthread_barrier_t start;
static double spent[2];
static volatile float sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void multiply(void) {
    vector sum[SUMS], a, b;
    for (int j = 0; j < LANES; j++) a[j] = 0.999999f, b[j] = 1e-6f;
    for (int i = 0; i < SUMS; i++) sum[i] = b * (float)i;
    for (long n = 0; n < STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * a + b;
        __asm__ volatile("" ::: );
    }
    float total = 0;
    for (int i = 0; i < SUMS; i++) for (int j = 0; j < LANES; j++) total += sum[i][j];
    sink = total;
}

static void read_memory(const vector *data) {
    vector sum[SUMS] = {0};
    for (long n = 0; n + SUMS <= FLOATS / LANES; n += SUMS)
        for (int i = 0; i < SUMS; i++) sum[i] += data[n + i];
    float total = 0;
    for (int i = 0; i < SUMS; i++) total += sum[i][0];
    sink = total;
}

static void *work(void *number) {
    cpu_set_t all, single;
    sched_getaffinity(0, sizeof all, &all);
    long remaining = (long)number;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && remaining-- == 0) {
            CPU_ZERO(&single);
            CPU_SET(cpu, &single);
            pthread_setaffinity_np(pthread_self(), sizeof single, &single);
            break;
        }
    vector *data = aligned_alloc(64, 4 * FLOATS);
    for (long i = 0; i < FLOATS / LANES; i++) data[i] = (vector){0};
    for (int which = 0; which < 2; which++)
        for (int turn = 0; turn < 3; turn++) {
            pthread_barrier_wait(&start);
            double begun = now();
            if (which) read_memory(data); else multiply();
            pthread_barrier_wait(&start);
            double took = now() - begun;
            if (number == 0 && (turn == 0 || took < spent[which])) spent[which] = took;
        }
    return data;
}

int main(int argc, char **argv) {
    long threads = argc > 1 ? atol(argv[1]) : 1;
    pthread_t *all = calloc(threads, sizeof *all);
    pthread_barrier_init(&start, NULL, threads);
    for (long i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, (void *)i);
    for (long i = 0; i < threads; i++) pthread_join(all[i], NULL);
    printf("%.1f %.1f\n", 2e-9 * LANES * SUMS * STEPS * threads / spent[0], 4e-9 * FLOATS * threads / spent[1]);
    return 0;
}
