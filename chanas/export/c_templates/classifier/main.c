/* Classifies images: prints the most likely class and its probability, one line for each image.

   @NAME@ [-l] [-t] [FILE]

   FILE holds images as @NAME@.h describes them, raw 32-bit floats, one after the other; without it they come from
   standard input. -l prints the logits after class and probability, -t the median time of an inference in the end. */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "@NAME@.h"

enum { PIXELS = @MACRO@_CHANNELS * @MACRO@_HEIGHT * @MACRO@_WIDTH, TIMED = 201 };

static float image[PIXELS], logits[@MACRO@_CLASSES];

static void print_class(int with_logits) {
    int best = 0;
    double sum = 0;
    for (int i = 1; i < @MACRO@_CLASSES; ++i)
        if (logits[i] > logits[best]) best = i;
    for (int i = 0; i < @MACRO@_CLASSES; ++i) sum += exp((double)logits[i] - logits[best]);
    printf("%s\t%.4f", @NAME@_class_names[best], 1 / sum);
    for (int i = 0; with_logits && i < @MACRO@_CLASSES; ++i) printf("\t%.9g", logits[i]);
    putchar('\n');
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ms(void) {
    static double ms[TIMED];
    for (int i = 0; i < TIMED; ++i) {
        double start = now_ms();
        @NAME@_run(image, logits);
        ms[i] = now_ms() - start;
    }
    qsort(ms, TIMED, sizeof *ms, by_size);
    return ms[TIMED / 2];
}

int main(int argc, char **argv) {
    int with_logits = 0, with_time = 0, code;
    const char *path = NULL;
    for (int i = 1; i < argc; ++i) {
        if (!strcmp(argv[i], "-l"))
            with_logits = 1;
        else if (!strcmp(argv[i], "-t"))
            with_time = 1;
        else if (argv[i][0] != '-' && !path)
            path = argv[i];
        else
            return fprintf(stderr, "usage: %s [-l] [-t] [FILE]\n", argv[0]), 2;
    }
    FILE *file = path ? fopen(path, "rb") : stdin;
    if (!file) return perror(path), 1;
    size_t got;
    while ((got = fread(image, sizeof *image, PIXELS, file)) == PIXELS) {
        if ((code = @NAME@_run(image, logits)) != @MACRO@_OK)
            return fprintf(stderr, "%s: @NAME@_run returned %d\n", argv[0], code), 1;
        print_class(with_logits);
    }
    if (ferror(file)) return perror(path ? path : "standard input"), 1;
    if (got) return fprintf(stderr, "%s: the last image has %zu of %d numbers\n", argv[0], got, (int)PIXELS), 1;
    if (with_time) printf("%.4f ms\n", median_ms());
    return 0;
}
