"""Stage two: tunes every operator of a space on a target with TVM and fills the latency table.

In: a search space and a hardware target. Out: tuning records (SQLite) and a LUT (JSON). Read in this order: `workload`
(what is tuned), `operators` and `space` (how it can be written), `apply` (point to program), `mutate` and `cost_model`
(where to look), `worker`, `pool` and `reference` (building, checking, timing), `canary` (is the machine as it was),
`tune` and `jobs` (one operator, many), `budget` (which of the many), `remeasure` (which of the best is the best),
`graph` (blocks and networks), `lut`; for other processors `cross` (linkers) and `emulator` (running their code)."""
