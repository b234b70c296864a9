"""Contracts of the parts that others may write, as classes of tests to inherit. They need pytest.

A part keeps its contract if these tests pass: `class TestMine(TunerContract)` with the few members that a contract asks
for. chanas' own parts are tested by the same classes."""

from chanas.testing.cost_models import CostModelContract as CostModelContract
from chanas.testing.families import FamilyContract as FamilyContract
from chanas.testing.layouts import LayoutContract as LayoutContract
from chanas.testing.runners import RunnerContract as RunnerContract
from chanas.testing.tuners import TunerContract as TunerContract
