"""The process that compiles, checks and times: as its parent has it, and what runs in it."""
