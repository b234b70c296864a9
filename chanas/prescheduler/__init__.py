"""Stage two: tunes every operator of a space on a target with TVM and fills the latency table.

In: a search space and a hardware target. Out: tuning records (SQLite) and a table of latencies (JSON). Read in this
order: `workloads` (operators, points, right results), `kernels` (spaces and schedules), `codegen` (from a scheduled
function to a library), `measuring` (from a candidate to an outcome), `records` (outcomes in SQLite), `tuning` (the
choice of points), `tables` (the latency table); `checks` is for devices that are elsewhere."""
