"""The bundle that a search leaves: opened, checked, run and timed."""
