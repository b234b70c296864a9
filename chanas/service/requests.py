"""Requests of clients: a table, a search or a finished network, on a target, with a demand. Nothing in one is a path or
a command; files are named by the hashes that their uploads got."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from chanas.bundle.tuned import LIBRARIES
from chanas.errors import ServiceError

_MAX_VALUES = 1 << 26
_MAX_MINUTES = 7 * 24 * 60.0

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Preset = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
Key = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,40}$")]
SubSpaceKey = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,40}$")]
Target = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}(@[\w.-]{1,64})?$")]
_OF_LIBRARY = re.compile(rf"({'|'.join(LIBRARIES)}):[a-z0-9_][a-z0-9_.]{{0,69}}")
_HASH = re.compile(r"[0-9a-f]{64}")

_OF_TABLES = {"space", "num_classes", "sub_spaces", "calibrate"}
_OF_SEARCHES = _OF_TABLES | {"accuracies"}
_OF_MODELS = {"model", "shapes"}


class Demand(BaseModel):
    """Wishes for a job.

    latency_s  most seconds of a call, measured, of a model or of a search's network
    accuracy   least accuracy in [0, 1] of a search's network, by the accuracies that it was given
    minutes    the job is hurried to end so long after it was submitted; a model is also not tuned for longer
    priority   the higher one's stages go first
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    accuracy: float | None = Field(default=None, ge=0, le=1)
    minutes: float | None = Field(default=None, gt=0, le=_MAX_MINUTES)
    priority: int = Field(default=0, ge=-10, le=10)


class JobRequest(BaseModel):
    """A job.

    kind        table, search or model
    target      one of the service's, such as cpu, cpu-bf16, or cpu@pi4 for the devices of a key; the fingerprint of a
                device may stand for its key
    model       of a model: the hash of an uploaded ONNX file, torchvision:NAME or timm:NAME
    shapes      of a model: shapes of inputs that the file leaves open
    space       of a table or search: a preset's name, or the hash of an uploaded YAML file
    sub_spaces  of a table or search: keys such as r224-w1; all where there are none
    calibrate   of a table or search: whole networks that the table is calibrated with
    accuracies  of a search: the hash of an uploaded CSV file
    trials      schedule points per operator on average
    tune_share  the fewest operators that make up so much of all operations are tuned; the others take schedules over
    transfer    begin with what other jobs have learned on the device
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["table", "search", "model"]
    target: Target = "cpu"
    model: str | None = Field(default=None, max_length=80)
    shapes: dict[Key, Annotated[tuple[int, ...], Field(max_length=8)]] = Field(default={}, max_length=16)
    space: Hash | Preset | None = None
    num_classes: int | None = Field(default=None, ge=1, le=1 << 16)
    sub_spaces: Annotated[tuple[SubSpaceKey, ...], Field(max_length=64)] = ()
    calibrate: int = Field(default=12, ge=0, le=200)
    accuracies: Hash | None = None
    trials: int | None = Field(default=None, ge=1, le=4096)
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    tune_share: float = Field(default=1.0, gt=0, le=1)
    transfer: bool = True
    demand: Demand = Demand()

    @model_validator(mode="after")
    def _fits_its_kind(self) -> JobRequest:
        kinds = {"table": _OF_TABLES, "search": _OF_SEARCHES, "model": _OF_MODELS}
        wrong = self.model_fields_set & (_OF_SEARCHES | _OF_MODELS) - kinds[self.kind]
        if wrong:
            raise ValueError(f"{', '.join(sorted(wrong))} can't be set for a {self.kind}")
        if self.kind == "model":
            self._check_model()
        if self.kind == "search" and (self.accuracies is None or self.demand.latency_s is None):
            raise ValueError("a search needs accuracies, the hash of an upload, and demand.latency_s")
        if self.kind == "table" and self.demand.latency_s is not None:
            raise ValueError("demand.latency_s can't be set for a table")
        if self.kind != "search" and self.demand.accuracy is not None:
            raise ValueError(f"demand.accuracy can't be set for a {self.kind}: its accuracy is what it is")
        return self

    def _check_model(self) -> None:
        model = self.model or ""
        if not (_HASH.fullmatch(model) or _OF_LIBRARY.fullmatch(model)):
            raise ValueError(f"model must be the hash of an upload, {' or '.join(f'{lib}:NAME' for lib in LIBRARIES)}")
        for shape in self.shapes.values():
            if min(shape, default=1) < 1 or math.prod(shape) > _MAX_VALUES:
                raise ValueError(f"extents of shapes must be above 0, and at most {_MAX_VALUES} values in all")

    @property
    def uploads(self) -> tuple[str, ...]:
        """Hashes of the files that it needs."""
        return tuple(text for text in (self.model, self.space, self.accuracies) if text and _HASH.fullmatch(text))

    @property
    def goals(self) -> tuple[float | None, float | None] | None:
        """Latency and accuracy, where whatever reaches these is what is asked for."""
        demand = self.demand
        if self.kind == "model" and demand.latency_s is not None:
            return demand.latency_s, None
        if self.kind == "search" and demand.accuracy is not None:
            return demand.latency_s, demand.accuracy
        return None

    def digest(self) -> str:
        """SHA-256 of all of it."""
        return digest_of(self._content())

    def effort(self) -> str:
        """Digest of what its result depends on."""
        data = self._content()
        del data["transfer"], data["demand"]["priority"]
        return digest_of(data)

    def _content(self) -> dict[str, Any]:
        """All of it as JSON, without what older requests did not have where that is as it was then."""
        return self.model_dump(mode="json", exclude={"tune_share"} if self.tune_share == 1.0 else None)


def digest_of(data: Any) -> str:
    """SHA-256 of data as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def parse_request(text: bytes) -> JobRequest:
    """A request from JSON.

    Raises:
        ServiceError: it is none (422); one line says where and why.
    """
    try:
        return JobRequest.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
        if fault["type"] == "extra_forbidden":
            message = "unknown key"
        raise ServiceError(f"{f'{place}: ' if place else ''}{message}"[:400], 422) from None
