"""The report: one HTML page of a run directory. It is self-contained (inline style and SVG, no script, no network).
In: a `RunDirectory`, whatever stages it holds so far. Out: `report.html` in it. It reads files only, so it shows what
was stored and runs nothing again."""
