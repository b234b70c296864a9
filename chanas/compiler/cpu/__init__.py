"""Code for CPUs: `families` has one row for each operator, `operators` and `transformed` their expressions, `space`
their points; `schedules` turns a point into a program, `build` a program into a library."""
