"""Operators of CPUs: `families` has one row for each, `operators` their expressions, `space` their points, `schedules`
turns a point into a program."""
