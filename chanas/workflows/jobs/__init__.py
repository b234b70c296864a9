"""Several tunings, of tables and of networks, as jobs on one machine: read from a file, run by a policy, and drawn."""
