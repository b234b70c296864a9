"""The plan of a tuning: its target, its operators, and how long it takes, known before it begins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.effort import NetworkEffort
from chanas.core.units import format_estimate
from chanas.errors import TargetError

if TYPE_CHECKING:
    from chanas.compiler.program import Program
    from chanas.core.target import HardwareTarget
    from chanas.models.sources.model import OpenedModel


def plan_lines(
    opened: OpenedModel, program: Program, target: HardwareTarget, effort: NetworkEffort, folder: Path | None
) -> list[str]:
    """Lines about the operators that are tuned, their target, and about how long that takes.

    Raises:
        ConfigError: as `changed_spaces`.
    """
    from chanas.bundle.tuned import remark_of
    from chanas.compiler.knobs import changed_spaces
    from chanas.prescheduler.tuning.budget import TRIAL_S
    from chanas.workflows.models.layouts import forms_of

    remark = remark_of(opened.origin)
    forms = forms_of(target, effort)
    knobs = None if effort.knobs is None else Path(effort.knobs)
    spaces, num_forms = changed_spaces(program.workloads(), forms[0].on(target), knobs), len(forms)
    most = num_forms * sum(min(effort.num_trials, space.num_points) for space in spaces)
    seconds = math.inf if effort.minutes is None else 60.0 * effort.minutes
    seconds = min(seconds, TRIAL_S * most)
    return [
        f"plan       {opened.name}{f' ({remark})' if remark else ''} for target {target.name}: {len(spaces)} "
        f"operators{f' in {num_forms} forms' * (num_forms > 1)}, at most {most} trials, kept ones included; "
        f"{format_estimate(seconds)} on two idle cores",
        *([] if folder is None else [f"           into {folder}"]),
    ]


def own_target(target: HardwareTarget, effort: NetworkEffort) -> HardwareTarget:
    """The processor in float32, which all operators of a network can be in.

    Raises:
        TargetError: there are no kernels for finished networks in such a use, or not in all layouts that are wanted.
    """
    from chanas.workflows.models.layouts import forms_of

    if target.gpu is not None or target.batch > 1:
        raise TargetError(f"finished networks are tuned for processors, one input at a time; got target {target.name}")
    return forms_of(target, effort)[0].on(target)
