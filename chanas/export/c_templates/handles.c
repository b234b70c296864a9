static @NAME@_handle own; /* of the function without a handle */

int @NAME@_run(@NUMBERED_PARAMETERS@) {
    return @ANY_IS_NULL@ ? @MACRO@_NULL_POINTER : run_once(&own, @POINTERS@);
}

int @NAME@_run_with(@NAME@_handle *handle, size_t num, @NUMBERED_PARAMETERS@) {
    if (handle == NULL || @ANY_IS_NULL@) return @MACRO@_NULL_POINTER;
    int code = @MACRO@_OK;
    for (size_t i = 0; i < num && code == @MACRO@_OK; ++i) code = run_once(handle, @NEXT_POINTERS@);
    return code;
}

@NAME@_handle *@NAME@_create(void) {
    unsigned char *block = malloc(sizeof(@NAME@_handle) + ALIGNMENT);
    if (block == NULL) return NULL;
    unsigned char *at = block + (ALIGNMENT - (uintptr_t)block % ALIGNMENT); /* room for a pointer before it, at least */
    memcpy(at - sizeof block, &block, sizeof block);
    return (@NAME@_handle *)(void *)at;
}

void @NAME@_destroy(@NAME@_handle *handle) {
    unsigned char *block;
    if (handle == NULL) return;
    memcpy(&block, (unsigned char *)handle - sizeof block, sizeof block);
    free(block);
}
