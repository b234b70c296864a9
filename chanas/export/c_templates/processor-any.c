static int has_instructions(void) { return 1; }
