"""chanas/core/units.py: no latency without a unit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.core.units import (
    format_bytes,
    format_count,
    format_duration,
    format_latency,
    parse_accuracy,
    parse_bytes,
    parse_count,
    parse_latency_s,
)
from chanas.errors import ChanasError, UnitError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", 0.02),
        ("1.5 s", 1.5),
        (" 300us ", 300e-6),
        ("300µs", 300e-6),
        ("300\u03bcs", 300e-6),  # the Greek letter
        ("5ns", 5e-9),
        (".5ms", 0.5e-3),
        ("2e-3s", 2e-3),
    ],
)
def test_a_latency_with_a_unit_becomes_seconds(text: str, seconds: float) -> None:
    assert parse_latency_s(text) == pytest.approx(seconds)


NO_NUMBER_WITH_A_UNIT = ("20", "-3ms", "", "ms", "nanms", "infs", "1,5ms", "20 ms please", "0x10ms", "--")
UNKNOWN_UNIT = ("20xs", "20MS", "20m", "20sec")
OUT_OF_RANGE = ("0ms", "0.000s", "1e-400s", "1e999s")


@pytest.mark.parametrize("text", [*NO_NUMBER_WITH_A_UNIT, *UNKNOWN_UNIT, *OUT_OF_RANGE])
def test_what_is_not_a_positive_number_with_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_latency_s(text)


@given(st.text(max_size=20))
def test_any_text_is_a_latency_or_one_clear_error(text: str) -> None:
    try:
        assert parse_latency_s(text) > 0
    except ChanasError as error:
        assert text in str(error)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.5 s"),
        (0.0123, "12.3 ms"),
        (4.56e-5, "45.6 us"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (999.6e-6, "1 ms"),
        (1234.0, "1234 s"),
        (-0.0123, "-12.3 ms"),
        (0.0, "0 us"),
    ],
)
def test_a_latency_is_printed_with_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert format_latency(seconds) == text


@given(st.floats(1e-8, 1e4))
def test_a_printed_latency_reads_back_within_its_digits(seconds: float) -> None:
    assert parse_latency_s(format_latency(seconds)) == pytest.approx(seconds, rel=6e-3)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (219_000_000, "219M"),
        (7_664_760, "7.66M"),
        (999_600, "1M"),
        (999_400, "999k"),
        (4.35e20, "435000000T"),
        (12, "12"),
        (0, "0"),
    ],
)
def test_a_count_is_printed_with_a_metric_suffix(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(("text", "count"), [("300M", 300e6), ("2.5k", 2500.0), (" 4000000 ", 4e6), ("1 G", 1e9)])
def test_a_count_may_have_a_suffix(text: str, count: float) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "num"), [("8MB", 8e6), ("8 MiB", 8 * 2**20), ("500kB", 5e5), ("500 KB", 5e5), ("64B", 64.0)]
)
def test_bytes_have_a_unit(text: str, num: float) -> None:
    assert parse_bytes(text) == num


@pytest.mark.parametrize("text", ["8", "8ms", "-8MB", "0MB"])
def test_what_is_no_size_of_memory_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="peak memory"):
        parse_bytes(text, "peak memory")


@pytest.mark.parametrize("text", ["", "many", "-3M", "3MB", "1e999", "0"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="number of parameters"):
        parse_count(text, "number of parameters")


@pytest.mark.parametrize(("num", "text"), [(8_250_000, "8.25 MB"), (999_600, "1 MB"), (12, "12 B"), (2e12, "2000 GB")])
def test_bytes_are_written_with_three_digits(num: float, text: str) -> None:
    assert format_bytes(num) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (125.0, "2:05"), (3725.0, "1:02:05")])
def test_durations_are_minutes_and_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "value"), [("0.753", 0.753), (".5", 0.5), ("1.0", 1.0), ("1", 1.0), ("75%", 0.75), (" 75.3 % ", 0.753)]
)
def test_an_accuracy_is_a_share_or_in_percent(text: str, value: float) -> None:
    assert parse_accuracy(text) == value


def test_a_percentage_is_the_same_number_as_its_fraction() -> None:
    for i in range(1, 10_000):
        assert parse_accuracy(f"{max(i / 100, 1.0):.2f}%") == parse_accuracy(f"{max(i / 10_000, 0.01):.4f}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [("75.3", "75.3%"), ("100", "100%"), ("0.753%", "75.3% or 0.753"), ("0", "75.3%"), ("0%", "75.3%")]
    + [(text, "up to 1") for text in ("-0.5", "101", "101%", "nan", "inf", "half", "", "75,3%", "%")],
)
def test_an_accuracy_of_an_unlikely_unit_is_refused_with_what_may_be_meant(text: str, hint: str) -> None:
    with pytest.raises(UnitError, match=re.escape(hint)):
        parse_accuracy(text)
