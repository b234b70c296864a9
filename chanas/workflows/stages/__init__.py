"""Single stages run on a run directory: training, tuning, latency tables, the report."""
