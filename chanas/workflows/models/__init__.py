"""Finished networks: opened, tuned, built, saved, run, and compared with other runtimes."""
