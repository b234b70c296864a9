"""chanas/files/yaml_files.py: whatever is in a file of settings, what is wrong with it is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from chanas.errors import ConfigError
from chanas.files.yaml_files import read_mapping


@pytest.mark.parametrize(
    "text",
    [
        'run: "a\\0b"',
        'jobs: [{run: "\\x00"}]',
        "run: 2020-99-99",
        "run: " + "[" * 5000,
        "run: [",
        "- run",
        "",
        "run: \x00",
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_mapping(path, path, "file of jobs", "jobs", ConfigError)
    assert str(refused.value).isprintable()


def test_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_mapping(tmp_path / ("l" * 300), "it", "file of jobs", "jobs", ConfigError)
