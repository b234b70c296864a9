/* Compiles if no common header of the platform has a name that a network called so would define. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#if __has_include(<threads.h>)
#include <threads.h>
#endif

#if __has_include(<@NAME@.h>)
#error the platform has a header @NAME@.h
#endif
#if defined @MACRO@_H || defined @MACRO@_NULL_POINTER || defined @MACRO@_KERNEL_FAILED || \
    defined @MACRO@_UNSUPPORTED || defined @MACRO@_CHANNELS || defined @MACRO@_HEIGHT || defined @MACRO@_WIDTH || \
    defined @MACRO@_CLASSES
#error the platform has macros that begin with @MACRO@_
#endif

extern struct another {
    int kind;
} @NAME@_run, @NAME@_run_with, @NAME@_create, @NAME@_destroy, @NAME@_handle, @NAME@_supported, @NAME@_class_names,
    @NAME@_mean, @NAME@_std;

int main(void) { return 0; }
