"""T4, the file of a tuning's results that Kernel Tuner, KTT and others write (schema 1.0.0,
https://github.com/odgaard/TuningSchema): an object with `results`, each a configuration, whether it is valid, and what
was measured.

Seconds are those of the objective, if its unit is one of time, or of the measurement `time`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chanas.measuring.messages import ErrorKind, WorkerError
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.offline.exchange.measured import mean_seconds
from chanas.prescheduler.tuning.offline.exchange.reading import (
    UnusableError,
    count,
    listed,
    mapping,
    number,
    numbers,
    string,
)
from chanas.prescheduler.tuning.offline.exchange.t1 import Value

SCHEMA_VERSION = "1.0.0"
_VERSION = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}")
_KNOWN_MAJOR = "1"
VALID = "correct"
INVALIDITIES = ("timeout", "compile", "runtime", "correctness", "constraints", VALID)
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}
_TIME = "time"
_OF_ERRORS = {
    ErrorKind.TIMEOUT: "timeout",
    ErrorKind.WRONG: "correctness",
    ErrorKind.RAISED: "compile",  # exceptions are raised by what schedules and builds
}


@dataclass(frozen=True)
class Result:
    """A valid configuration and its seconds."""

    configuration: Mapping[str, Value]
    seconds: float


def read_results(data: Any, skipped: Counter[str]) -> list[Result]:
    """Check a T4 file's JSON; results of no use here are counted.

    Raises:
        ValueError: something is missing, or not what the schema asks for.
    """
    whole_file = mapping(data, "results of a tuning")
    version = string(whole_file.get("schema_version", SCHEMA_VERSION), "schema_version")
    if _VERSION.fullmatch(version) is None:
        raise ValueError(f"expected a schema_version such as {SCHEMA_VERSION}, got {version[:20]}")
    results = listed(whole_file.get("results"), "results")
    if version.partition(".")[0] != _KNOWN_MAJOR:
        skipped[f"of another version of the schema than {SCHEMA_VERSION} ({version})"] += len(results)
        return []
    unit = string(mapping(whole_file.get("metadata", {}), "metadata").get("timeunit", "milliseconds"), "timeunit")
    found = []
    for place, result in enumerate(results):
        try:
            found.append(_result(mapping(result, "a result"), unit))
        except UnusableError as reason:
            count(skipped, reason)
        except ValueError as error:
            raise ValueError(f"results[{place}]: {error}") from error
    return found


def _result(result: Mapping[str, Any], unit: str) -> Result:
    configuration = mapping(result.get("configuration"), "configuration")
    for name, value in configuration.items():
        if not isinstance(value, int | float | str):
            raise ValueError(f"expected a number, a truth or a text for {name[:40]}, got {type(value).__name__}")
    times = mapping(result.get("times"), "times")
    listed(times.get("runtimes", []), "runtimes")
    invalidity = string(result.get("invalidity"), "invalidity")
    if invalidity not in INVALIDITIES:
        raise ValueError(f"expected one of {', '.join(INVALIDITIES)} for invalidity, got {invalidity[:40]}")
    number(result.get("correctness"), "correctness")
    objectives = [string(o, "an objective") for o in listed(result.get("objectives", []), "objectives")]
    measurements = [mapping(m, "a measurement") for m in listed(result.get("measurements", []), "measurements")]
    if invalidity != VALID:
        raise UnusableError(f"that failed ({invalidity})")
    by_name = {string(m.get("name"), "a measurement's name"): m for m in measurements}
    for name in [*objectives[:1], _TIME]:
        if name in by_name and (seconds := _seconds(by_name[name], unit)) is not None:
            return Result(dict(configuration), seconds)
    raise UnusableError("without a time among their measurements")


def _seconds(measurement: Mapping[str, Any], default_unit: str) -> float | None:
    """Seconds of a measurement, of a list their mean; None where it is none of time."""
    unit = string(measurement.get("unit", ""), "a measurement's unit")
    if not unit and measurement["name"].startswith(_TIME):
        unit = default_unit
    factor, value = _UNITS.get(unit.lower()), measurement.get("value")
    if factor is None or isinstance(value, str):
        return None
    runs = numbers(value, "a time") if isinstance(value, list) else [number(value, "a time")]
    return mean_seconds(run * factor for run in runs)


# ---- our own records ------------------------------------------------------------------------------------------------
def results_of(trials: Sequence[tuple[Mapping[str, Value], TuningRecord]]) -> dict[str, Any]:
    """Trials, failures too, as T4. The runs that a median is of were not kept, so that `runtimes` is not there."""
    results = []
    for configuration, record in trials:
        invalidity = VALID if record.is_valid else _invalidity(record)
        measurements = []
        for name, seconds in (
            (_TIME, record.seconds),
            ("time_spread", record.spread_s),
            ("time_again", record.again_s),
        ):
            if seconds is not None:
                measurements.append({"name": name, "value": seconds * 1e3, "unit": "ms"})
        results.append(
            {
                "configuration": dict(configuration),
                "objectives": [_TIME],
                "times": {},
                "invalidity": invalidity,
                "correctness": 0 if invalidity == "correctness" else 1,
                "measurements": measurements,
            }
        )
    return {"schema_version": SCHEMA_VERSION, "metadata": {"timeunit": "milliseconds"}, "results": results}


def _invalidity(record: TuningRecord) -> str:
    """The schema's word for a failure."""
    return _OF_ERRORS.get(WorkerError.read(record.error or "").kind, "runtime")
