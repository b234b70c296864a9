"""Operators of NVIDIA GPUs: `families` has one row for each, `operators` their expressions, `space` their points;
`schedules`, `product` and `squeeze` turn a point into a program."""
