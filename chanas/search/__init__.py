"""Stage three, the co-search (paper, section 3.6): the most accurate network inside the budget. In: a search space, a
`LatencyLUT`, callables that evaluate and prove architectures. Out: a `SearchOutcome`, and `evaluations.jsonl` and
`result.json` in the run directory."""
