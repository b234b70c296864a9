/* Runs the network: prints the smallest and the largest number of each output, and where they stand in it.

   @NAME@ [-t] [-o FILE] @FILES@

   The files hold the inputs as @NAME@.h describes them, raw numbers. -o writes the outputs to a file, one after the
   other, -t prints the median time of a call. */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "@NAME@.h"

#define OPTION "-o"
enum { NUM_INPUTS = @NUM_INPUTS@ };
enum { OPTION_WORDS = 1, LEAST_FILES = NUM_INPUTS, MOST_FILES = NUM_INPUTS, TIMED = 201 };

@VARIABLES@

static const struct {
    const char *name;
    void *data;
    size_t size;
} inputs[] = {
@INPUT_TABLE@
}, outputs[] = {
@OUTPUT_TABLE@
};

static int run(void) { return @NAME@_run(@ARGUMENTS@); }

@EXAMPLE@
#define PRINT(name, data)                                                                                       \
    do {                                                                                                        \
        size_t low = 0, high = 0, num = sizeof(data) / sizeof *(data);                                          \
        for (size_t i = 1; i < num; ++i) {                                                                      \
            if (data[i] < data[low]) low = i;                                                                   \
            if (data[i] > data[high]) high = i;                                                                 \
        }                                                                                                       \
        printf("%s\t%.9g at %zu\t%.9g at %zu\n", name, (double)data[low], low, (double)data[high], high);       \
    } while (0)

static int read_input(int i, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return perror(path), 1;
    size_t got = fread(inputs[i].data, 1, inputs[i].size, file);
    int more = getc(file) != EOF;
    fclose(file);
    if (got == inputs[i].size && !more) return 0;
    fprintf(stderr, "%s: expected %zu bytes of %s, got %s%zu\n", path, inputs[i].size, inputs[i].name,
            more ? "more than " : "", got);
    return 1;
}

static int write_outputs(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) return perror(path), 1;
    int failed = 0;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; ++i)
        failed |= fwrite(outputs[i].data, 1, outputs[i].size, file) != outputs[i].size;
    failed |= fclose(file) != 0;
    if (failed) perror(path);
    return failed;
}

int main(int argc, char **argv) {
    if (!read_arguments(argc, argv)) return fprintf(stderr, "usage: %s [-t] [-o FILE] @FILES@\n", argv[0]), 2;
    for (int i = 0; i < NUM_INPUTS; ++i)
        if (read_input(i, files[i])) return 1;
    int code = run();
    if (code != @MACRO@_OK) return fprintf(stderr, "%s: @NAME@_run returned %d\n", argv[0], code), 1;
@PRINTS@
    if (option && write_outputs(option)) return 1;
    if (with_time) printf("%.4f ms\n", median_ms());
    return printed();
}
