/* Calls the kernels of one network in order, and has what they need of a runtime. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "@NAME@.h"

@RUNTIME@
static const struct {
    kernel *run;
    size_t weights; /* where the block's weights begin */
} blocks[] = {
@BLOCKS@
};

const char *const @NAME@_class_names[@MACRO@_CLASSES] = {
@CLASS_NAMES@
};
const float @NAME@_mean[@MACRO@_CHANNELS] = {@MEAN@}, @NAME@_std[@MACRO@_CHANNELS] = {@STD@};

static int run_once(@NAME@_handle *handle, const float *image, float *logits) {
    void *input = (void *)image; /* kernels only read it */
    current = handle;
    if ((uintptr_t)image % ALIGNMENT != 0)
        input = memcpy(handle->odd, image, sizeof(float) * @MACRO@_CHANNELS * @MACRO@_HEIGHT * @MACRO@_WIDTH);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; ++i) {
        void *output = i % 2 == 0 ? handle->even : handle->odd;
        tensor tensors[3];
        argument result = {0}, arguments[3] = {
            tensor_at(&tensors[0], input),
            tensor_at(&tensors[1], (void *)(@NAME@_weights + blocks[i].weights)),
            tensor_at(&tensors[2], output),
        };
        handle->used = 0;
        if (blocks[i].run(NULL, arguments, 3, &result) != 0) return @MACRO@_KERNEL_FAILED;
        input = output;
    }
    memcpy(logits, input, sizeof(float) * @MACRO@_CLASSES);
    return @MACRO@_OK;
}

@HANDLES@