#define ALIGNMENT 64

/* The memory of one call. */
struct @NAME@_handle {
@BUFFERS@
    unsigned char workspace[@WORKSPACE_BYTES@] __attribute__((aligned(ALIGNMENT))); /* what kernels need inside */
    size_t used;                                                                   /* bytes of it */
};
