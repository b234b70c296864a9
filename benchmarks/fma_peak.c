/* The float32 multiply-add peak of one core, from registers alone.

   fma_peak CORE SECONDS  ->  one line: instruction set, then GFLOP/s of each of SAMPLES equal stretches

   Independent accumulators hide the latency of the instruction: latency (4 or 5 cycles) times units (2, up to 4 on Arm)
   are in flight, so that 20 suffice everywhere. AVX2 has 16 registers, of which 12 accumulate; 10 suffice there.
   Compile with: cc -O3 -march=native */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef __linux__
#include <sched.h>
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#define ISA "avx512"
typedef __m512 vector;
#define LANES 16
#define SET(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define EACH(X) TWELVE(X) TWELVE_MORE(X)
#define ACCUMULATORS 24
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define ISA "avx2"
typedef __m256 vector;
#define LANES 8
#define SET(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define EACH(X) TWELVE(X)
#define ACCUMULATORS 12
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#define ISA "neon"
typedef float32x4_t vector;
#define LANES 4
#define SET(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define EACH(X) TWELVE(X) TWELVE_MORE(X)
#define ACCUMULATORS 24
#else
#error "expected a processor with AVX-512, with AVX2 and FMA, or with NEON"
#endif

#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define TWELVE_MORE(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define SAMPLES 9

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Runs `steps` times one multiply-add on every accumulator. The sum keeps the compiler from leaving them out. */
static float stretch(long steps, float a_value, float b_value) {
    const vector a = SET(a_value), b = SET(b_value);
#define DECLARE(i) vector c##i = SET(1.0f + i);
    EACH(DECLARE)
    while (steps-- > 0) {
#define STEP(i) c##i = FMA(a, b, c##i);
        EACH(STEP)
    }
    vector total = SET(0.0f);
#define ADD(i) total = FMA(a, c##i, total);
    EACH(ADD)
    float out[LANES];
    __builtin_memcpy(out, &total, sizeof out);
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) sum += out[i];
    return sum;
}

int main(int argc, char **argv) {
    const int core = argc > 1 ? atoi(argv[1]) : 0;
    const double seconds = argc > 2 ? atof(argv[2]) : 0.4;
#ifdef __linux__
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
        perror("sched_setaffinity");
        return 1;
    }
#endif
    volatile float one_thousandth = 1e-3f;
    volatile float sink = 0.0f;
    long steps = 1L << 20;
    double elapsed = 0.0;
    for (int i = 0; i < 3; i++) { /* wakes the core up and finds how many steps fill a sample */
        const double start = now();
        sink += stretch(steps, one_thousandth, one_thousandth);
        elapsed = now() - start;
    }
    steps = (long)(steps * seconds / SAMPLES / elapsed) + 1;
    printf("%s", ISA);
    for (int i = 0; i < SAMPLES; i++) {
        const double start = now();
        sink += stretch(steps, one_thousandth, one_thousandth);
        printf(" %.2f", 2.0 * LANES * ACCUMULATORS * steps / (now() - start) / 1e9);
    }
    printf("\n");
    return 0;
}
