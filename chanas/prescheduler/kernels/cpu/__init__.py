"""Operators of CPUs: `operators` has their expressions, `space` their points, `schedules` turns a point into a
program, `families` has one row for each."""
