#define INTERNAL __attribute__((visibility("hidden")))

/* The arguments of a kernel, as TVM compiles it: DLPack's DLTensor (dlpack.h) in TVM FFI's TVMFFIAny (tvm/ffi/c_api.h). */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t type_code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct {
    int32_t type_index;
    uint32_t zero;
    union {
        int64_t integer;
        void *pointer;
    } value;
} argument;

enum { ON_CPU = 1, FLOAT = 2, TENSOR_POINTER = 7 };

typedef int32_t kernel(void *self, const argument *arguments, int32_t count, argument *result);

@KERNELS@

INTERNAL extern const unsigned char @NAME@_weights[];

@MEMORY@
/* The one that this thread runs with: kernels ask for memory and don't say whose. */
static __thread @NAME@_handle *current;

/* A stack: kernels give back all that they took since `at`, in any order. */
static void *allocate(int device_type, int device_id, uint64_t size, int type_code, int bits) {
    (void)device_type, (void)device_id, (void)type_code, (void)bits;
    if (size > sizeof current->workspace - current->used) return NULL;
    void *at = current->workspace + current->used;
    current->used += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static int give_back(int device_type, int device_id, void *at) {
    (void)device_type, (void)device_id;
    size_t begin = (size_t)((unsigned char *)at - current->workspace);
    if (begin < current->used) current->used = begin;
    return 0;
}

/* A parallel loop, run as one task. */
typedef struct {
    void *barrier;
    int32_t num_tasks;
} group;

static int launch(int (*task)(int, group *, void *), void *data, int num_tasks) {
    group alone = {NULL, 1};
    (void)num_tasks;
    return task(0, &alone, data);
}

/* What kernels look up by name. */
INTERNAL void *(*@NAME@_allocate)(int, int, uint64_t, int, int) = allocate;
INTERNAL int (*@NAME@_give_back)(int, int, void *) = give_back;
INTERNAL int (*@NAME@_launch)(int (*)(int, group *, void *), void *, int) = launch;

INTERNAL void @NAME@_raise(const char *kind, const char *message) { (void)kind, (void)message; }

INTERNAL void @NAME@_raise_parts(const char *kind, const char **parts, int32_t count) {
    (void)kind, (void)parts, (void)count;
}

static argument tensor_at(tensor *t, void *data) {
    *t = (tensor){.data = data, .device_type = ON_CPU, .type_code = FLOAT, .bits = 32, .lanes = 1};
    return (argument){.type_index = TENSOR_POINTER, .value.pointer = t};
}
