"""Convolutions of channel groups that do not fill vectors, as data: which lanes belong to which group.

Several groups are computed abreast: lane v of a vector belongs to group v mod G of the G that share it, so that a
vector of inputs is a few neighbouring numbers again and again, which processors load at once: of 8 channels a group in
16 lanes two (a0, b0, a0, b0, …), of 4 channels four. No lane is empty as long as there are groups.

    24 outputs a group, 16 lanes: 8 lanes for each of 2 groups abreast, 3 vectors for their 48 outputs
    lanes of vector i: output 8i of group 0, 8i of group 1, 8i + 1 of group 0, …
"""

from __future__ import annotations

import math
from typing import NamedTuple

from chanas.operators.workload import Workload


class Abreast(NamedTuple):
    """Groups that are computed side by side.

    groups   groups that share vectors
    outputs  outputs of a group in one vector
    vectors  vectors for all outputs of these groups
    sets     sets of as many groups; the last one may be short of some
    """

    groups: int
    outputs: int
    vectors: int
    sets: int


def abreast(workload: Workload, lanes: int) -> Abreast:
    """Way in which groups of a convolution share vectors of so many lanes; G = 1 where groups fill their vectors."""
    outputs = math.gcd(workload.outputs_per_group, lanes)
    groups = lanes // outputs
    return Abreast(groups, outputs, workload.outputs_per_group // outputs, -(-workload.num_groups // groups))
