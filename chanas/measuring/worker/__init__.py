"""Compiling and timing in a process of its own: as its parent has it, and what runs in it."""
