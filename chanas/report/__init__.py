"""The report: one self-contained HTML page (inline style and SVG, no script, no network) made from the files of a run
directory. In: a `RunDirectory`, whatever stages it holds so far. Out: `report.html` in it. It reads files only, so it
shows what was stored and runs nothing again."""
