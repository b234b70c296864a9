"""Code of operators: `cases` (right results), `space` (points), `backends` (an entry for each kind of device); in
`cpu/` and `cuda/` expressions, spaces and schedules of operators, and the libraries that these become."""
