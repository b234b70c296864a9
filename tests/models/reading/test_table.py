"""chanas/models/reading: the table of operators beside ONNX's own list."""

from __future__ import annotations

from collections import defaultdict

import onnx
import pytest

from chanas.models.reading import reader  # noqa: F401 -- fills the table
from chanas.models.reading.call import TABLE


def attributes() -> dict[str, set[str]]:
    """Attributes of each operator of ONNX, in all its versions."""
    found = defaultdict[str, set[str]](set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            found[schema.name] |= set(schema.attributes)
    return found


@pytest.mark.parametrize("name", sorted(name for name in TABLE if "." not in name))
def test_an_entry_mentions_every_attribute_that_its_operator_ever_had(name: str) -> None:
    assert attributes()[name] <= TABLE[name].attributes
