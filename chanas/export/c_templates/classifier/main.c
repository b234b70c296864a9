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

#define OPTION "-l"
enum { OPTION_WORDS = 0, LEAST_FILES = 0, MOST_FILES = 1, TIMED = 201 };
enum { PIXELS = @MACRO@_CHANNELS * @MACRO@_HEIGHT * @MACRO@_WIDTH };

static float image[PIXELS], logits[@MACRO@_CLASSES];

static int run(void) { return @NAME@_run(image, logits); }

@EXAMPLE@
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

int main(int argc, char **argv) {
    if (!read_arguments(argc, argv)) return fprintf(stderr, "usage: %s [-l] [-t] [FILE]\n", argv[0]), 2;
    const char *path = files[0];
    FILE *file = path ? fopen(path, "rb") : stdin;
    if (!file) return perror(path), 1;
    size_t got;
    int code;
    while ((got = fread(image, sizeof *image, PIXELS, file)) == PIXELS) {
        if ((code = run()) != @MACRO@_OK)
            return fprintf(stderr, "%s: @NAME@_run returned %d\n", argv[0], code), 1;
        print_class(option != NULL);
    }
    if (ferror(file)) return perror(path ? path : "standard input"), 1;
    if (got) return fprintf(stderr, "%s: the last image has %zu of %d numbers\n", argv[0], got, (int)PIXELS), 1;
    if (with_time) printf("%.4f ms\n", median_ms());
    return printed();
}
