/* Calls the kernels of one network in order, and has what they need of a runtime. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "@NAME@.h"

@RUNTIME@
enum { NUM_CALLS = @NUM_CALLS@, MOST_ARGUMENTS = @MOST_ARGUMENTS@ };

static const struct {
    kernel *run;
    int32_t num_arguments;
} calls[] = {
@CALLS@
};

/* The arguments of one call after the other: 0 stands for the weights, 1 for the memory below, 2 for the first input. */
static const struct {
    uint16_t base;
    size_t offset;
} places[] = {
@PLACES@
};
@FACTS@
/* The input where it is aligned, otherwise a copy at `copy`. */
static unsigned char *aligned_input(const void *input, unsigned char *copy, size_t size) {
    return (uintptr_t)input % ALIGNMENT == 0 ? (unsigned char *)input : memcpy(copy, input, size);
}

static int run_once(@NAME@_handle *handle, @NUMBERED_PARAMETERS@) {
    current = handle;
    unsigned char *const bases[] = {
        (unsigned char *)@NAME@_weights, /* kernels only read them, and inputs */
        handle->memory,
@BASES@
    };
    for (int i = 0, next = 0; i < NUM_CALLS; ++i) {
        tensor tensors[MOST_ARGUMENTS];
        argument result = {0}, arguments[MOST_ARGUMENTS];
        for (int32_t k = 0; k < calls[i].num_arguments; ++k, ++next)
            arguments[k] = tensor_at(&tensors[k], bases[places[next].base] + places[next].offset);
        handle->used = 0;
        if (calls[i].run(NULL, arguments, calls[i].num_arguments, &result) != 0) return @MACRO@_KERNEL_FAILED;
    }
@COPIES@
    return @MACRO@_OK;
}

@HANDLES@