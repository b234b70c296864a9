"""CUDA code: kernels printed, compiled by NVRTC, and packed into programs."""
