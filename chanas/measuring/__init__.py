"""Candidates built, run and timed: a candidate in, an outcome out."""
