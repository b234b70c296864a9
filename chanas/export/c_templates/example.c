/* What the arguments say: files, whether to time, and OPTION, or the word that follows it. */
static int with_time, num_files;
static const char *option, *files[MOST_FILES];

static int read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        if (!strcmp(argv[i], "-t"))
            with_time = 1;
        else if (!strcmp(argv[i], OPTION) && i + OPTION_WORDS < argc)
            option = argv[i += OPTION_WORDS];
        else if (argv[i][0] != '-' && num_files < MOST_FILES)
            files[num_files++] = argv[i];
        else
            return 0;
    }
    return num_files >= LEAST_FILES;
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
        run();
        ms[i] = now_ms() - start;
    }
    qsort(ms, TIMED, sizeof *ms, by_size);
    return ms[TIMED / 2];
}

/* The program's code: 1 where not all of standard output was written. */
static int printed(void) {
    int failed = (fflush(stdout) != 0) | (ferror(stdout) != 0);
    if (failed) fprintf(stderr, "standard output: not all of it could be written\n");
    return failed;
}
