"""Stage two: tunes every operator of a space on a target with TVM and fills the latency table.

In: a search space and a hardware target. Out: tuning records (SQLite) and a table of latencies (JSON). Read in this
order: `records` (outcomes in SQLite), `tuning` (the choice of points), `tables` (the latency table), `program`
(finished networks, which `models` has opened). Code is generated in `compiler` and timed in `measuring`."""
