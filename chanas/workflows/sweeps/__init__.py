"""Sweeps: one command with many values of its parameters. Each combination is a run with a folder of its own. In goes
a grid (a YAML file), out come rows: how each run ended, how long it took and what it found, as a table, a CSV file
and plots."""
