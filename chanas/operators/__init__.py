"""Operators as data: their shapes, blocks as steps over numbered values, and the memory that these values take. No
program is made here; `compiler` does that for each processor."""
