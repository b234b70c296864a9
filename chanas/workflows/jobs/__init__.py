"""Several tunings as jobs on shared machines: read from a file, run by a policy, drawn."""
