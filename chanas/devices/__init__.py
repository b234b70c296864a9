"""This machine: its CPU and GPU found, its cores shared out, its runtimes loaded, calls timed on it."""
