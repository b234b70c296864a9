"""Several tunings, of tables and of networks, as jobs on shared machines: read from a file, run by a policy, drawn."""
