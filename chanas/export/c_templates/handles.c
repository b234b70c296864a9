@PROCESSOR@
int @NAME@_supported(void) {
    static int answer; /* 1: no, 2: yes, 0: not known yet */
    int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (known == 0) __atomic_store_n(&answer, known = has_instructions() ? 2 : 1, __ATOMIC_RELAXED);
    return known == 2;
}

int @NAME@_run_with(@NAME@_handle *handle, size_t num, @NUMBERED_PARAMETERS@) {
    if (handle == NULL || @ANY_IS_NULL@) return @MACRO@_NULL_POINTER;
    if (!@NAME@_supported()) return @MACRO@_UNSUPPORTED;
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
