/* Calls compiled kernels one after the other without TVM's runtime. chanas/measuring/checks/qemu.py writes what it reads.

   PROGRAM CASES OUTPUTS
     CASES    of each call: int32 index of the kernel, int32 number of arguments, and of each argument int32 kind of
              numbers (of DLPack), int32 bits of one, int32 rank, int64 extents[rank], the numbers; the last argument is
              the output and has no numbers
     OUTPUTS  of each call: int32 what the kernel returned (0: all is well), the numbers of the output

   kernels.h defines KERNELS(X) as X(name) of each kernel. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "kernels.h"

typedef int Kernel(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result);
#define DECLARE(name) Kernel __tvm_ffi_##name;
#define ADDRESS(name) __tvm_ffi_##name,
KERNELS(DECLARE)
static Kernel *const kernels[] = {KERNELS(ADDRESS)};

/* ---- what kernels call, through pointers that TVM's runtime would fill in ----------------------------------------- */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} Tasks;
typedef int Task(int index, Tasks *tasks, void *data);

static int one_after_the_other(Task *task, void *data, int num_task) {
  Tasks tasks = {NULL, num_task > 0 ? num_task : 1};
  for (int i = 0; i < tasks.num_task; ++i) {
    int status = task(i, &tasks, data);
    if (status) return status;
  }
  return 0;
}

static void *aligned(uint64_t bytes) { return aligned_alloc(64, (bytes + 64) & ~(uint64_t)63); }

static void *workspace(int device_type, int device_id, uint64_t bytes, int code_hint, int bits_hint) {
  (void)device_type, (void)device_id, (void)code_hint, (void)bits_hint;
  return aligned(bytes);
}

static int free_workspace(int device_type, int device_id, void *memory) {
  (void)device_type, (void)device_id;
  free(memory);
  return 0;
}

void *__TVMBackendParallelLaunch = (void *)one_after_the_other;
void *__TVMBackendAllocWorkspace = (void *)workspace;
void *__TVMBackendFreeWorkspace = (void *)free_workspace;

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) { fprintf(stderr, "%s: %s\n", kind, message); }

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i)
    if (parts[i]) fputs(parts[i], stderr);
  fputc('\n', stderr);
}

/* ---- cases -------------------------------------------------------------------------------------------------------- */
static void give_up(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(2);
}

static void read_all(void *to, size_t size, size_t count, FILE *file) {
  if (fread(to, size, count, file) != count) give_up("the cases end too early");
}

/* Returns the bytes of its numbers. */
static size_t read_argument(DLTensor *tensor, int is_output, FILE *file) {
  int32_t type[2], rank;
  size_t count = 1;
  read_all(type, sizeof *type, 2, file);
  read_all(&rank, sizeof rank, 1, file);
  tensor->shape = malloc(sizeof(int64_t) * rank);
  tensor->strides = malloc(sizeof(int64_t) * rank);
  read_all(tensor->shape, sizeof(int64_t), rank, file);
  for (int32_t i = rank - 1; i >= 0; --i) {
    tensor->strides[i] = (int64_t)count;
    count *= (size_t)tensor->shape[i];
  }
  size_t size = count * (size_t)(type[1] / 8);
  tensor->data = aligned(size);
  tensor->device = (DLDevice){kDLCPU, 0};
  tensor->ndim = rank;
  tensor->dtype = (DLDataType){(uint8_t)type[0], (uint8_t)type[1], 1};
  tensor->byte_offset = 0;
  if (!tensor->data) give_up("out of memory");
  if (!is_output)
    read_all(tensor->data, 1, size, file);
  else
    memset(tensor->data, 0xFF, size); /* NaN, or 255: what nobody writes stays that */
  return size;
}

static void run_case(int32_t kernel, FILE *cases, FILE *outputs) {
  int32_t count;
  size_t size = 0;
  read_all(&count, sizeof count, 1, cases);
  if (kernel < 0 || (size_t)kernel >= sizeof kernels / sizeof *kernels || count < 1) give_up("no such kernel");
  DLTensor *tensors = calloc(count, sizeof *tensors);
  TVMFFIAny *arguments = calloc(count, sizeof *arguments), result = {0};
  for (int32_t i = 0; i < count; ++i) {
    size = read_argument(&tensors[i], i == count - 1, cases);
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = &tensors[i];
  }
  int32_t status = kernels[kernel](NULL, arguments, count, &result);
  fwrite(&status, sizeof status, 1, outputs);
  fwrite(tensors[count - 1].data, 1, size, outputs);
  if (fflush(outputs)) give_up("the outputs can't be written"); /* what was run before a crash is there */
  for (int32_t i = 0; i < count; ++i) {
    free(tensors[i].data);
    free(tensors[i].shape);
    free(tensors[i].strides);
  }
  free(tensors);
  free(arguments);
}

int main(int argc, char **argv) {
  int32_t kernel;
  FILE *cases = argc == 3 ? fopen(argv[1], "rb") : NULL, *outputs = argc == 3 ? fopen(argv[2], "wb") : NULL;
  if (!cases || !outputs) give_up("expected two files: CASES OUTPUTS");
  while (fread(&kernel, sizeof kernel, 1, cases) == 1) run_case(kernel, cases, outputs);
  return 0;
}
