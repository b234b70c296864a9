"""The co-search (paper, section 3.6): from a latency table and a way to evaluate sub-networks to the most accurate
architecture that measures inside the budget. In: a search space, a `LatencyLUT`, callables that evaluate and prove
architectures. Out: a `SearchOutcome`, and `evaluations.jsonl` and `result.json` in the run directory."""
