#include <cpuid.h>

/* Instruction sets that the kernels have: where CPUID tells of each, and the registers that the operating system has to
   keep for it (bits of XCR0). */
static const struct {
    unsigned leaf, subleaf, word, bit, registers;
} needed[] = {
@NEEDED@
};

/* Matrix registers are a process's own only after it has asked Linux for them: arch_prctl(ARCH_REQ_XCOMP_PERM,
   XFEATURE_XTILEDATA). */
static int gets_matrices(void) {
#ifdef __linux__
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return !answer;
#else
    return 1;
#endif
}

static int has_instructions(void) {
    unsigned kept = 0, high, word[4];
    if (__get_cpuid(1, &word[0], &word[1], &word[2], &word[3]) && word[2] >> 27 & 1)
        __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    for (size_t i = 0; i < sizeof needed / sizeof *needed; ++i) {
        if (!__get_cpuid_count(needed[i].leaf, needed[i].subleaf, &word[0], &word[1], &word[2], &word[3])) return 0;
        if (!(word[needed[i].word] >> needed[i].bit & 1)) return 0;
        if ((kept & needed[i].registers) != needed[i].registers) return 0;
        if (needed[i].registers >> 18 & 1 && !gets_matrices()) return 0;
    }
    return 1;
}
