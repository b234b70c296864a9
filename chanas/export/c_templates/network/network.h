/* Runs a neural network that `chanas tune` made. It needs nothing but the C library, libm included.

   network        @NETWORK@
   compiled for   @DEVICE@
   needs          @INSTRUCTIONS@
   schedules      @SCHEDULES@
   latency        @LATENCY@
   memory         @WEIGHT_BYTES@ bytes of constant weights, @STATIC_BYTES@ of activations (static, of programs that
                  call @NAME@_run; from the heap for each handle)
   made by        chanas @VERSION@ from weights that have the hash @WEIGHTS_HASH@ */
#ifndef @MACRO@_H
#define @MACRO@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers in each input and output. Names of several words are in small letters: so no other network has them. */
@SIZES@

/* What @NAME@_run and @NAME@_run_with return. */
#define @MACRO@_OK 0
#define @MACRO@_NULL_POINTER 1  /* one of its arguments */
#define @MACRO@_KERNEL_FAILED 2 /* a kernel gave up; the outputs were not written */
#define @MACRO@_UNSUPPORTED 3   /* this processor lacks instructions; nothing was run */

/* Whether processor and operating system have the instructions that the network needs: 1 or 0. */
int @NAME@_supported(void);

/* Runs the network once.

   Inputs, which are only read; where an address is a multiple of 64 the input is read in place, otherwise copied first:
@INPUTS@

   Outputs, which are written, in memory of their own:
@OUTPUTS@

   NaN and infinity are not looked for: where an input has any the code is @MACRO@_OK, and they go through the network
   as in PyTorch. What is computed from NaN is NaN.

   Returns @MACRO@_OK or one of the other codes above. It runs in the calling thread alone. Activations lie in
   memory of the library's own, so one call at a time; several threads take the functions below. Whole
   numbers that choose something by its index have to be in range. */
int @NAME@_run(@PARAMETERS@);

@HANDLE_FUNCTIONS@
#ifdef __cplusplus
}
#endif

#endif
