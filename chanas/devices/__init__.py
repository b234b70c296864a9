"""This machine: CPU and GPU found, cores shared out, runtimes loaded, calls timed."""
