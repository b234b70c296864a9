"""The page of jobs on shared machines: a trace in, one HTML page out."""
