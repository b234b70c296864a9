"""Operators of NVIDIA GPUs: `operators` has their expressions, `space` their points, `schedules` turns a point into
a program."""
