/* Runs a neural network that `chanas tune` made. It needs nothing but the C library, libm included.

   network        @NETWORK@
   compiled for   @DEVICE@
   schedules      @SCHEDULES@
   latency        @LATENCY@
   memory         @WEIGHT_BYTES@ bytes of constant weights, @STATIC_BYTES@ of activations (static; no heap without handles)
   made by        chanas @VERSION@ from weights that have the hash @WEIGHTS_HASH@ */
#ifndef @MACRO@_H
#define @MACRO@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers in each input and output. */
@SIZES@

/* What @NAME@_run returns. */
#define @MACRO@_OK 0
#define @MACRO@_NULL_POINTER 1  /* one of its arguments */
#define @MACRO@_KERNEL_FAILED 2 /* a kernel gave up; the outputs were not written */

/* Runs the network once.

   Inputs, which are only read; where an address is a multiple of 64 the input is read in place, otherwise copied first:
@INPUTS@

   Outputs, which are written, in memory of their own:
@OUTPUTS@

   Returns @MACRO@_OK or one of the other codes above. It runs in the calling thread alone. Activations lie in
   memory of the library's own, so one call at a time; several threads take the functions below. Whole
   numbers that choose something by its index have to be in range. */
int @NAME@_run(@PARAMETERS@);

@HANDLE_FUNCTIONS@
#ifdef __cplusplus
}
#endif

#endif
