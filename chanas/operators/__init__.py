"""Operators as data: their shapes, blocks as steps over numbered values, memory of these. No
program is made here; `compiler` does that for each processor."""
