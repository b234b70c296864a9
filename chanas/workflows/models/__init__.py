"""Finished networks from elsewhere: opened, tuned, built, saved, run, and compared with other runtimes."""
