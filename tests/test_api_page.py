"""docs/api.md: every name in it is there, and every function of the API is in it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from python_names import faults

from chanas import workflows
from chanas.export import c_library, tuned_library
from chanas.workflows.stages import tables

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE + README, re.DOTALL)
STAGES = {
    workflows: (
        "train_supernet",
        "preschedule",
        "search",
        "search_front",
        "search_per_target",
        "ablate",
        "evaluate",
        "finetune",
        "report",
        "demo",
    ),
    tables: ("open_table", "show", "check", "fill", "compare", "calibrate"),
    c_library: ("export",),
    tuned_library: ("export_tuned",),
}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.strip().splitlines()[-1][:50])
def test_what_a_snippet_names_is_there(snippet: str) -> None:
    assert faults(snippet) == []


def test_every_stage_is_on_the_page_and_says_what_it_does() -> None:
    for module, names in STAGES.items():
        for name in names:
            assert inspect.getdoc(getattr(module, name)), name
            assert re.search(rf"\b{name}\(", PAGE) or re.search(rf"`[\w.]*\b{name}`", PAGE), name


def test_the_common_case_takes_three_lines() -> None:
    assert sum(bool(line) for line in SNIPPETS[0].splitlines()) == 3
    assert SNIPPETS[0] in README


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("from chanas.workflows import serch", "chanas.workflows has no serch"),
        ("from chanas import workflows\nworkflows.serch()", "has no attribute 'serch'"),
        ("from chanas import workflows\nworkflows.search(latency=3)", "search takes no latency"),
        ("from chanas.bundle.codesign import CoDesign\nCoDesign.read", "has no attribute 'read'"),
    ],
)
def test_a_name_that_is_not_there_is_a_fault(source: str, told: str) -> None:
    (fault,) = faults(source)
    assert told in fault
