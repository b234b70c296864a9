"""The cost of the run, as in the paper's Table 2: once per task, once per device, once per budget. Only what was
recorded."""

from __future__ import annotations

from chanas.report.reading import RunData, at, real

NOT_RECORDED = "not recorded"


def cost_rows(run: RunData) -> list[tuple[str, str, str, str, str]]:
    """(what, how often, time, hours, what is in it) of each step that has run, and of one more target."""
    rows: list[tuple[str, str, str, float | None]] = []
    if run.checkpoint is not None or run.training:
        rows.append(("training the supernet", "once per task", _training_detail(run), training_s(run)))
    for table in run.tables:
        rows.append((f"table “{table['name']}”", "once per device", _table_detail(table), _table_s(table)))
    spent, device = _search_s(run), _table_s(run.table)
    if run.result is not None:
        rows.append(("search", "per budget", _search_detail(run), spent))
    if device is not None and spent is not None:
        rows.append(("one more target", "each", "a table and a search; nothing is trained", device + spent))
    return [
        (what, often, _duration(s), "–" if s is None else f"{s / 3600:.2g}", detail) for what, often, detail, s in rows
    ]


def training_s(run: RunData) -> float | None:
    """Seconds of training by the clock, all processes that trained together; None where they were not recorded."""
    spent = [s for row in run.training if (s := real(row, "wall_s")) is not None]
    return max(spent) if spent else None


def _training_detail(run: RunData) -> str:
    steps, size = real(run.checkpoint, "step"), real(run.checkpoint, "world_size")
    device = at(run.checkpoint, "config", "device")
    text = f"{steps:.0f} steps" if steps is not None else ""
    if size and size > 1:
        text += f" on {size:.0f} processes at once"
    return f"{text}, device {device}" if isinstance(device, str) else text


def _table_s(table: dict[str, object] | None) -> float | None:
    return real(table, "header", "built_in_s")


def _table_detail(table: dict[str, object]) -> str:
    built, timing = _table_s(table), real(table, "header", "timing_s")
    text = f"tuning and timing of {at(table, 'num_rows')} blocks"
    if built and timing is not None:
        text += f"; the device was timing {100 * timing / built:.0f} % of it"
    return text + "; calibration not counted"


def _search_s(run: RunData) -> float | None:
    parts = [real(run.result, "seconds", name) for name in ("learning", "searching", "proving")]
    known = [p for p in parts if p is not None]
    return sum(known) if known else None


def _search_detail(run: RunData) -> str:
    names = {"learning": "evaluating and learning", "searching": "searching", "proving": "compiling and measuring"}
    parts = [(text, s) for name, text in names.items() if (s := real(run.result, "seconds", name)) is not None]
    text = ", ".join(f"{_duration(s)} {text}" for text, s in parts)
    return text + ("; accuracies known from before are not counted" if text else "")


def _duration(seconds: float | None) -> str:
    """12.34 -> 12.3 s, 3000 -> 50 min, 7200 -> 2 h."""
    if seconds is None or seconds < 0:
        return NOT_RECORDED
    if seconds < 90:
        return f"{seconds:.3g}\u00a0s"
    return f"{seconds / 60:.3g}\u00a0min" if seconds < 5400 else f"{seconds / 3600:.3g}\u00a0h"
