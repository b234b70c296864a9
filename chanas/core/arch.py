"""The architecture search space and its members: pure data, no torch, no tvm.

A `SearchSpace` is a stack of stages of MBConv blocks (paper, section 3.3 and figure 6). An `Architecture` picks a
resolution, a width multiplier, a depth per stage, and a kernel size and an expand ratio per block. Its `blocks(space)`
are `BlockConfig`s with concrete shapes. Where blocks may be in several dtypes, it picks that of each block, too.

Shapes follow the MobileNetV3 space of once-for-all (Cai et al., ICLR 2020), so that published tables of it apply here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.core.blocks import (
    ACTIVATIONS,
    DTYPE_LETTERS,
    Activation,
    BlockConfig,
    BlockKind,
    conversions,
    make_divisible,
    with_conversions,
)
from chanas.errors import ArchitectureError, ConfigError, unknown_name
from chanas.files.yaml_files import preset_or_file, read_mapping

SCHEMA = 1
NUM_FIXED = 4
"""Blocks of a network that are not in a stage: stem, first block, head, classifier."""
_FROM_LETTER = {letter: dtype for dtype, letter in DTYPE_LETTERS.items()}


def _width_text(width_multiplier: float) -> str:
    """The shortest decimal that reads back as the same number, without a trailing `.0`: 1.0 -> `1`, 1.25 -> `1.25`."""
    return repr(float(width_multiplier)).removesuffix(".0")


def _check_counts(what: str, **values: Any) -> None:
    """Raises ConfigError unless every value is a whole number above zero."""
    for field, value in values.items():
        if type(value) is not int or value <= 0:
            raise ConfigError(f"{what}: {field} must be a whole number above zero, got {value!r}")


def _check_keys(what: str, data: dict[str, Any], cls: type, left_out: Sequence[str] = ()) -> None:
    """Raises ConfigError unless the keys of `data` are exactly the fields of the dataclass `cls`, without some that are
    left out."""
    known = [f.name for f in dataclasses.fields(cls) if f.name not in left_out]
    for key in data:
        if key not in known:
            raise ConfigError(unknown_name(f"key in {what}", str(key), known))
    if missing := [field for field in known if field not in data]:
        raise ConfigError(f"{what} lacks {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: up to `max_depth` MBConv blocks that share width; the first of them has the stride."""

    width: int
    stride: int
    activation: Activation
    use_se: bool

    def __post_init__(self) -> None:
        _check_counts("stage", width=self.width, stride=self.stride)
        if self.activation not in ACTIVATIONS:
            raise ConfigError(unknown_name("activation of a stage", str(self.activation), ACTIVATIONS))
        if not isinstance(self.use_se, bool):
            raise ConfigError(f"stage: use_se must be true or false, got {self.use_se!r}")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StageSpec:
        """Raises ConfigError: a key is unknown or missing, or a value is out of range."""
        if not isinstance(data, dict):
            raise ConfigError(f"stage: expected a mapping of stage fields, got {data!r}")
        _check_keys("stage", data, cls)
        return cls(**data)


@dataclass(frozen=True, slots=True, order=True)
class SubSpace:
    """All architectures of one resolution and one width multiplier (paper, section 3.6)."""

    resolution: int
    width_multiplier: float

    @property
    def key(self) -> str:
        return f"r{self.resolution}-w{_width_text(self.width_multiplier)}"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One sub-network. `stages[s]` lists (kernel_size, expand_ratio) of its active blocks; its length is the depth.

    `dtypes` are those of its blocks, in order of execution; none: all blocks are in the target's.
    """

    resolution: int
    width_multiplier: float
    stages: tuple[tuple[tuple[int, int], ...], ...]
    dtypes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Readable and unique, such as `r32-w1.25-k3e6.k5e3-k3e3-k5e6` (stages by `-`, blocks by `.`); in several
        dtypes with a letter for each block, such as `r32-w1-k3e6-k3e3_fiiiff` (float32, bfloat16, int8)."""
        body = "-".join(".".join(f"k{k}e{e}" for k, e in stage) for stage in self.stages)
        letters = "".join(DTYPE_LETTERS.get(dtype, "?") for dtype in self.dtypes)
        return f"r{self.resolution}-w{_width_text(self.width_multiplier)}-{body}{letters and '_'}{letters}"

    @property
    def plain(self) -> Architecture:
        """The same without dtypes: what accuracies in float32 are of."""
        return dataclasses.replace(self, dtypes=())

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(len(stage) for stage in self.stages)

    @property
    def sub_space(self) -> SubSpace:
        return SubSpace(self.resolution, self.width_multiplier)

    @classmethod
    def from_key(cls, key: str) -> Architecture:
        """Inverse of `key`.

        Raises:
            ArchitectureError: `key` is not written like one.
        """
        letters = "".join(_FROM_LETTER)
        if re.fullmatch(rf"r\d+-w\d+(\.\d+)?(-k\d+e\d+(\.k\d+e\d+)*)+(_[{letters}]+)?", key, re.ASCII) is None:
            raise ArchitectureError(f"expected an architecture key such as r32-w1-k3e6.k5e3-k3e3, got '{key}'")
        shape, _, dtypes = key.partition("_")
        resolution, width, *stages = shape.split("-")
        blocks = tuple(
            tuple((int(k), int(e)) for k, e in (b[1:].split("e") for b in stage.split("."))) for stage in stages
        )
        return cls(int(resolution[1:]), float(width[1:]), blocks, tuple(_FROM_LETTER[letter] for letter in dtypes))

    @classmethod
    def from_plain_key(cls, key: str) -> Architecture:
        """The same of an architecture whose blocks are all in one dtype.

        Raises:
            ArchitectureError: `key` is not written like one, or names dtypes.
        """
        found = cls.from_key(key)
        if found.dtypes:
            raise ArchitectureError(
                f"expected an architecture without dtypes of blocks, such as {found.plain.key}, got '{key}'"
            )
        return found

    def outline(self) -> tuple[BlockConfig, ...]:
        """Its `blocks` without their shapes: their kinds, and dtypes where there are several."""
        in_stages: list[BlockKind] = ["mbconv"] * (1 + sum(self.depths))
        kinds: list[BlockKind] = ["stem", *in_stages, "head", "classifier"]
        dtypes = self.dtypes or [""] * len(kinds)
        blocks = [BlockConfig(kind, 1, 1, 1, 1, dtype=dtype) for kind, dtype in zip(kinds, dtypes, strict=True)]
        return with_conversions(blocks) if self.dtypes else tuple(blocks)

    def block_names(self) -> tuple[str, ...]:
        """Names of its `blocks` for people: `stem`, `first block`, `stage 1.1  k3 e6`, …, `head`, `classifier`; where
        there are several dtypes `head  int8`, and `to int8`, `from int8` of those that convert."""
        body = [
            f"stage {number}.{position}  k{kernel_size} e{expand_ratio}"
            for number, stage in enumerate(self.stages, start=1)
            for position, (kernel_size, expand_ratio) in enumerate(stage, start=1)
        ]
        left, words = iter(("stem", "first block", *body, "head", "classifier")), {"encode": "to", "decode": "from"}
        short = {"": "", "float32": "", "bfloat16": "bf16", "int8": "int8"}
        return tuple(
            f"{words[block.kind]} {short[block.dtype]}"
            if block.converts
            else f"{next(left)}  {short[block.dtype]}".rstrip()
            for block in self.outline()
        )

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "key": self.key}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Architecture:
        """Inverse of `to_json`.

        Raises:
            ArchitectureError: there is no key, it is not written like one, or the schema is another one.
        """
        if not isinstance(data, dict) or not isinstance(data.get("key"), str):
            raise ArchitectureError(f"expected an architecture as {{'schema': {SCHEMA}, 'key': …}}, got {data!r}")
        if data.get("schema", SCHEMA) != SCHEMA:
            raise ArchitectureError(f"expected architecture schema {SCHEMA}, got {data['schema']!r}")
        return cls.from_key(data["key"])

    def blocks(self, space: SearchSpace, num_classes: int = 1000) -> tuple[BlockConfig, ...]:
        """The blocks in order of execution, with concrete shapes: stem, first block, stages, head, classifier; in
        several dtypes with what converts between them.

        Raises:
            ArchitectureError: the architecture is not in `space`.
        """
        space.check(self)
        stem, first, head, classifier = space.fixed_blocks(self.sub_space, num_classes)
        body = [
            space.block(self.sub_space, stage, position, kernel_size, expand_ratio)
            for stage, choices in enumerate(self.stages)
            for position, (kernel_size, expand_ratio) in enumerate(choices)
        ]
        blocks = (stem, first, *body, head, classifier)
        if not self.dtypes:
            return blocks
        return with_conversions([dataclasses.replace(b, dtype=d) for b, d in zip(blocks, self.dtypes, strict=True)])

    def num_macs(self, space: SearchSpace, num_classes: int = 1000) -> int:
        return sum(b.num_macs for b in self.blocks(space, num_classes))

    def num_params(self, space: SearchSpace, num_classes: int = 1000) -> int:
        return sum(b.num_params for b in self.blocks(space, num_classes))


@dataclass(frozen=True)
class SearchSpace:
    """The choices. Presets lie in `configs/spaces/` (paper, section 4.1); `load(name_or_path)` reads one.

    `dtypes` are those that each block may be in, float32 first; none: all blocks are in the target's. They are a
    search's, and not part of what is stored, since weights and rows of tables are the same for all.
    """

    name: str
    resolutions: tuple[int, ...]
    width_multipliers: tuple[float, ...]
    kernel_sizes: tuple[int, ...]
    expand_ratios: tuple[int, ...]
    depths: tuple[int, ...]
    in_channels: int
    stem_width: int
    stem_stride: int
    first_width: int
    stages: tuple[StageSpec, ...]
    head_width: int
    feature_width: int
    dtypes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"search space: name must be a text, got {self.name!r}")
        for field in ("resolutions", "width_multipliers", "kernel_sizes", "expand_ratios", "depths"):
            values = getattr(self, field)
            if not values or list(values) != sorted(set(values)) or values[0] <= 0:
                raise ConfigError(
                    f"space '{self.name}': {field} must be positive, ascending, without repeats; got {list(values)}"
                )
            if field != "width_multipliers":
                for value in values:
                    _check_counts(f"space '{self.name}'", **{field: value})
        if not all(0.01 <= w <= 100.0 for w in self.width_multipliers):
            raise ConfigError(
                f"space '{self.name}': width_multipliers must lie in 0.01 … 100, got {list(self.width_multipliers)}"
            )
        _check_counts(
            f"space '{self.name}'",
            in_channels=self.in_channels,
            stem_width=self.stem_width,
            stem_stride=self.stem_stride,
            first_width=self.first_width,
            head_width=self.head_width,
            feature_width=self.feature_width,
        )
        if any(k % 2 == 0 for k in self.kernel_sizes):
            raise ConfigError(f"space '{self.name}': kernel_sizes must be odd, got {list(self.kernel_sizes)}")
        if not self.stages:
            raise ConfigError(f"space '{self.name}': at least one stage is needed")
        is_choice = len(self.dtypes) > 1 and self.dtypes[0] == "float32" and set(self.dtypes) <= DTYPE_LETTERS.keys()
        if self.dtypes and (not is_choice or len(set(self.dtypes)) < len(self.dtypes)):
            raise ConfigError(
                f"expected dtypes of blocks among {', '.join(DTYPE_LETTERS)}, float32 first and another, without "
                f"repeats; got {', '.join(self.dtypes)}"
            )

    # ---- size and members -------------------------------------------------------------------------------------
    @property
    def max_depth(self) -> int:
        return self.depths[-1]

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def sub_spaces(self) -> tuple[SubSpace, ...]:
        return tuple(SubSpace(r, w) for r, w in itertools.product(self.resolutions, self.width_multipliers))

    def named_sub_spaces(self, keys: Sequence[str]) -> tuple[SubSpace, ...]:
        """Sub-spaces from keys such as r224-w1; all without any. Raises ConfigError: there is no such one."""
        known = {s.key: s for s in self.sub_spaces}
        for key in keys:
            if key not in known:
                raise ConfigError(unknown_name("sub-space", key, known))
        return tuple(known[key] for key in keys) or self.sub_spaces

    @property
    def num_architectures(self) -> int:
        """Count the architectures of the space (blocks beyond a stage's depth don't count)."""
        choices = len(self.kernel_sizes) * len(self.expand_ratios)
        per_stage = sum(choices**depth for depth in self.depths)
        return int(per_stage**self.num_stages * len(self.sub_spaces))

    def contains(self, architecture: Architecture) -> bool:
        return self._fault(architecture) is None

    def check(self, architecture: Architecture) -> None:
        """Raises ArchitectureError, naming the first choice that is not in this space."""
        fault = self._fault(architecture)
        if fault is not None:
            raise ArchitectureError(f"architecture {architecture.key} is not in space '{self.name}': {fault}")

    def _fault(self, a: Architecture) -> str | None:
        if a.resolution not in self.resolutions:
            return f"resolution {a.resolution}; expected one of {list(self.resolutions)}"
        if a.width_multiplier not in self.width_multipliers:
            return f"width multiplier {_width_text(a.width_multiplier)}; expected one of {list(self.width_multipliers)}"
        if len(a.stages) != self.num_stages:
            return f"{len(a.stages)} stages; expected {self.num_stages}"
        for stage, blocks in enumerate(a.stages):
            if len(blocks) not in self.depths:
                return f"depth {len(blocks)} of stage {stage}; expected one of {list(self.depths)}"
            for kernel_size, expand_ratio in blocks:
                if kernel_size not in self.kernel_sizes:
                    return f"kernel size {kernel_size} in stage {stage}; expected one of {list(self.kernel_sizes)}"
                if expand_ratio not in self.expand_ratios:
                    return f"expand ratio {expand_ratio} in stage {stage}; expected one of {list(self.expand_ratios)}"
        if a.dtypes and len(a.dtypes) != sum(a.depths) + NUM_FIXED:
            return f"{len(a.dtypes)} dtypes of blocks; expected {sum(a.depths) + NUM_FIXED}"
        if unknown := set(a.dtypes) - set(self.dtypes or DTYPE_LETTERS):
            return f"a block in {min(unknown)}; expected one of {list(self.dtypes or DTYPE_LETTERS)}"
        return None

    def _uniform(self, resolution: int, width: float, kernel: int, expand: int, depth: int) -> Architecture:
        return Architecture(resolution, width, tuple(((kernel, expand),) * depth for _ in self.stages))

    @property
    def smallest(self) -> Architecture:
        return self._uniform(
            self.resolutions[0], self.width_multipliers[0], self.kernel_sizes[0], self.expand_ratios[0], self.depths[0]
        )

    @property
    def largest(self) -> Architecture:
        return self._uniform(
            self.resolutions[-1],
            self.width_multipliers[-1],
            self.kernel_sizes[-1],
            self.expand_ratios[-1],
            self.depths[-1],
        )

    # ---- shapes -----------------------------------------------------------------------------------------------
    def width(self, base: int, width_multiplier: float) -> int:
        """Channels of a layer of base width `base` at a width multiplier."""
        return make_divisible(base * width_multiplier)

    def stage_input_size(self, resolution: int, stage: int) -> int:
        size = -(-resolution // self.stem_stride)
        for spec in self.stages[:stage]:
            size = -(-size // spec.stride)
        return size

    def block(self, sub_space: SubSpace, stage: int, position: int, kernel_size: int, expand_ratio: int) -> BlockConfig:
        """The MBConv at `position` of `stage`, with its concrete shape."""
        spec, w = self.stages[stage], sub_space.width_multiplier
        before = self.first_width if stage == 0 else self.stages[stage - 1].width
        size = self.stage_input_size(sub_space.resolution, stage)
        out_channels = self.width(spec.width, w)
        in_channels = out_channels if position else self.width(before, w)
        stride = 1 if position else spec.stride
        return BlockConfig(
            kind="mbconv",
            input_size=-(-size // spec.stride) if position else size,
            in_channels=in_channels,
            mid_channels=make_divisible(round(in_channels * expand_ratio)),
            out_channels=out_channels,
            kernel_size=kernel_size,
            stride=stride,
            activation=spec.activation,
            use_se=spec.use_se,
            residual=stride == 1 and in_channels == out_channels,
        )

    def fixed_blocks(self, sub_space: SubSpace, num_classes: int) -> tuple[BlockConfig, ...]:
        """Stem, first block (kernel 3, expand ratio 1), head and classifier of a sub-space, in this order."""
        w = sub_space.width_multiplier
        stem, first = self.width(self.stem_width, w), self.width(self.first_width, w)
        head, feature = self.width(self.head_width, w), self.width(self.feature_width, w)
        size = self.stage_input_size(sub_space.resolution, 0)
        last_size = self.stage_input_size(sub_space.resolution, self.num_stages)
        return (
            BlockConfig("stem", sub_space.resolution, self.in_channels, 0, stem, 3, self.stem_stride, "hswish"),
            BlockConfig("mbconv", size, stem, stem, first, 3, 1, "relu", residual=stem == first),
            BlockConfig("head", last_size, self.width(self.stages[-1].width, w), 0, head, activation="hswish"),
            BlockConfig("classifier", 1, head, feature, num_classes, activation="hswish"),
        )

    def all_blocks(self, num_classes: int, sub_spaces: tuple[SubSpace, ...] | None = None) -> tuple[BlockConfig, ...]:
        """Every distinct block of the given sub-spaces (all of them by default), in a stable order."""
        found: dict[BlockConfig, None] = {}
        for sub_space in sub_spaces or self.sub_spaces:
            stem, first, head, classifier = self.fixed_blocks(sub_space, num_classes)
            found.update(dict.fromkeys((stem, first)))
            for stage, position, kernel_size, expand_ratio in itertools.product(
                range(self.num_stages), range(min(2, self.max_depth)), self.kernel_sizes, self.expand_ratios
            ):
                found[self.block(sub_space, stage, position, kernel_size, expand_ratio)] = None
            found.update(dict.fromkeys((head, classifier)))
        return tuple(found)

    def conversions_at(self, sub_space: SubSpace, place: int, before: str, after: str) -> tuple[BlockConfig, ...]:
        """The blocks that convert between one in `before` and one in `after`, at a place between blocks: 0 after the
        stem, 1 after the first block, then after a block of each stage, then after the head."""
        stem, first, head, classifier = self.fixed_blocks(sub_space, 1)
        if place < 2:
            writes, reads = (stem, first)[place], first
        elif place < self.num_stages + 2:
            writes = reads = self.block(sub_space, place - 2, 0, self.kernel_sizes[0], self.expand_ratios[0])
        else:
            writes, reads = head, classifier
        ends = (
            dataclasses.replace(writes, dtype=before).output_dtype,
            dataclasses.replace(reads, dtype=after).input_dtype,
        )
        return conversions(writes.output_size, writes.out_channels, *ends)

    def all_conversions(self, dtype: str, sub_spaces: tuple[SubSpace, ...] | None = None) -> tuple[BlockConfig, ...]:
        """Every distinct block between blocks of the given sub-spaces (all of them by default) that converts to or from
        `dtype`, in a stable order."""
        found: dict[BlockConfig, None] = {}
        for sub_space, place in itertools.product(sub_spaces or self.sub_spaces, range(self.num_stages + 3)):
            for before, after in (("float32", dtype), (dtype, "float32")):
                found.update(dict.fromkeys(self.conversions_at(sub_space, place, before, after)))
        return tuple(found)

    def with_dtypes(self, dtypes: Sequence[str]) -> SearchSpace:
        """The same choices for blocks that may be in several dtypes."""
        return dataclasses.replace(self, dtypes=tuple(dtypes))

    # ---- files ------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """The space as it is stored: all but `dtypes`."""
        data = json.loads(json.dumps(dataclasses.asdict(self)))
        return {"schema": SCHEMA, **{name: value for name, value in data.items() if name != "dtypes"}}

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the content, so that files made for one space are refused by another of the same name."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SearchSpace:
        """Inverse of `to_json`, and the reader of the YAML presets.

        Raises:
            ConfigError: a key is unknown or missing, a value has the wrong type, or the schema is another one.
        """
        if data.get("schema", SCHEMA) != SCHEMA:
            raise ConfigError(f"expected search space schema {SCHEMA}, got {data['schema']!r}")
        data = {k: v for k, v in data.items() if k != "schema"}
        _check_keys("search space", data, cls, left_out=("dtypes",))
        try:
            stages = tuple(StageSpec.from_json(stage) for stage in data["stages"])
            lists = {k: tuple(v) for k, v in data.items() if isinstance(v, list) and k != "stages"}
            widths = tuple(float(w) for w in data["width_multipliers"])
            return cls(**{**data, **lists, "width_multipliers": widths, "stages": stages})
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"search space '{data['name']}' is not written as expected: {error}") from error

    @classmethod
    def load(cls, name_or_path: str | Path) -> SearchSpace:
        """A preset by name (`mbv3`, `mbv3-32`) or a YAML file by path.

        Raises:
            ConfigError: there is no such preset or file, or it is not a search space.
        """
        source = preset_or_file(name_or_path, "spaces", "search space", ConfigError)
        fields = "search space fields"
        return cls.from_json(read_mapping(source, name_or_path, "search space file", fields, ConfigError))
