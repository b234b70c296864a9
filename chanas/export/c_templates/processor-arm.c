#include <sys/auxv.h>

/* Instruction sets that the kernels may have: bits of the first and of the second word of AT_HWCAP. */
static int has_instructions(void) {
    const uint64_t needed[] = {@NEEDED@};
    return (getauxval(AT_HWCAP) & needed[0]) == needed[0] && (getauxval(AT_HWCAP2) & needed[1]) == needed[1];
}
