/* The function without a handle, in a file of its own: a program that takes handles leaves this memory out. */
#include "@NAME@.h"

@MEMORY@
static @NAME@_handle own;

int @NAME@_run(@NUMBERED_PARAMETERS@) { return @NAME@_run_with(&own, 1, @POINTERS@); }
