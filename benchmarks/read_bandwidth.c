/* How fast one core reads an array again and again, as a network reads its weights once in every inference.

   read_bandwidth CORE BYTES SECONDS  ->  one line: GB/s of each of SAMPLES equal stretches

   Compile with: cc -O3 -march=native */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sched.h>
#endif

#define SAMPLES 9
#define STREAMS 8
typedef float vector __attribute__((vector_size(64)));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Reads the whole array `times` times. The sum keeps the compiler from leaving the reads out. */
static float stretch(const vector *data, size_t groups, long times) {
    vector sums[STREAMS];
    memset(sums, 0, sizeof sums);
    while (times-- > 0)
        for (size_t i = 0; i < groups; i++)
            for (int s = 0; s < STREAMS; s++) sums[s] += data[i * STREAMS + s];
    float total = 0.0f;
    for (int s = 0; s < STREAMS; s++)
        for (unsigned lane = 0; lane < sizeof(vector) / sizeof(float); lane++) total += sums[s][lane];
    return total;
}

int main(int argc, char **argv) {
    const int core = argc > 1 ? atoi(argv[1]) : 0;
    const size_t bytes = argc > 2 ? (size_t)atoll(argv[2]) : (size_t)1 << 24;
    const double seconds = argc > 3 ? atof(argv[3]) : 0.4;
    const size_t group = STREAMS * sizeof(vector), groups = bytes / group + 1;
#ifdef __linux__
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
        perror("sched_setaffinity");
        return 1;
    }
#endif
    vector *data = aligned_alloc(4096, (groups * group + 4095) / 4096 * 4096);
    if (data == NULL) {
        perror("aligned_alloc");
        return 1;
    }
    memset(data, 0, groups * group);
    volatile float sink = 0.0f;
    long times = 4;
    double elapsed = 0.0;
    for (int i = 0; i < 3; i++) {
        const double start = now();
        sink += stretch(data, groups, times);
        elapsed = now() - start;
    }
    times = (long)(times * seconds / SAMPLES / elapsed) + 1;
    for (int i = 0; i < SAMPLES; i++) {
        const double start = now();
        sink += stretch(data, groups, times);
        printf("%s%.2f", i ? " " : "", (double)(groups * group) * times / (now() - start) / 1e9);
    }
    printf("\n");
    free(data);
    return 0;
}
