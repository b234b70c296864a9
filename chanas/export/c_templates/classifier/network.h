/* Classifies an image: the network of a chanas bundle, compiled. It needs nothing but the C library.

   architecture   @ARCHITECTURE@
   compiled for   @DEVICE@
   needs          @INSTRUCTIONS@
   schedules      @SCHEDULES@
   latency        @LATENCY@
   memory         @WEIGHT_BYTES@ bytes of constant weights, @STATIC_BYTES@ of activations (static, of programs that
                  call @NAME@_run; from the heap for each handle)
   made by        chanas @VERSION@ from a bundle whose weights have the hash @WEIGHTS_HASH@ */
#ifndef @MACRO@_H
#define @MACRO@_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define @MACRO@_CHANNELS @CHANNELS@
#define @MACRO@_HEIGHT @RESOLUTION@
#define @MACRO@_WIDTH @RESOLUTION@
#define @MACRO@_CLASSES @CLASSES@

/* What @NAME@_run and @NAME@_run_with return. */
#define @MACRO@_OK 0
#define @MACRO@_NULL_POINTER 1  /* one of its arguments */
#define @MACRO@_KERNEL_FAILED 2 /* a kernel gave up; the logits were not written */
#define @MACRO@_UNSUPPORTED 3   /* this processor lacks instructions; nothing was run */

/* Whether processor and operating system have the instructions that the network needs: 1 or 0. */
int @NAME@_supported(void);

/* Names of the classes, in the order of the logits (UTF-8). */
extern const char *const @NAME@_class_names[@MACRO@_CLASSES];

/* An image as the network takes it: RGB, the short side resized to @SHORT_SIDE@ pixels (bilinear), the @RESOLUTION@ x @RESOLUTION@ pixels
   in the middle cut out, each value v of 0 to 255 turned into (v / 255 - mean) / std of its channel. */
extern const float @NAME@_mean[@MACRO@_CHANNELS], @NAME@_std[@MACRO@_CHANNELS];

/* Runs the network once.

   image    float [CHANNELS][HEIGHT][WIDTH]: the planes red, green, blue one after the other, rows from the top. It is
            only read. Where its address is a multiple of 64 it is read in place, otherwise copied first.
   logits   float [CLASSES], written; softmax makes probabilities of them.

   NaN and infinity are not looked for: of an image that has any the code is @MACRO@_OK, and they go through the network
   as in PyTorch. Of an image with NaN all logits are NaN; of one with infinity they may be ordinary numbers.

   Returns @MACRO@_OK or one of the other codes above. It runs in the calling thread alone. Activations lie in
   memory of the library's own, so one call at a time; several threads take the functions below. */
int @NAME@_run(const float *image, float *logits);

@HANDLE_FUNCTIONS@
#ifdef __cplusplus
}
#endif

#endif
