"""Measuring on this machine, in worker processes."""
