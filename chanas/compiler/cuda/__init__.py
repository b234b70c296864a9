"""Code for NVIDIA GPUs: `families` has one row for each operator, `operators` their expressions, `space` their points;
`schedules`, `product` and `squeeze` turn a point into kernels, `build` prints these and NVRTC compiles them."""
