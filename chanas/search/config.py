"""The search's settings. Every field has a default that suits the embedded demo; an unknown key is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chanas.core.usage import DTYPES
from chanas.errors import ConfigError
from chanas.search.accuracy.predictor import Kind
from chanas.search.evolution.evolution import EvolutionConfig

_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


class SearchConfig(BaseModel):
    """Settings of a search: how it evaluates, predicts, divides, evolves and proves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_evaluations: int = Field(default=96, ge=16, description="sub-networks evaluated at most to teach the predictor")
    initial_evaluations: int = Field(
        default=36, ge=12, description="of these, how many before the predictor is first asked"
    )
    evaluation_batch: int = Field(default=20, ge=1, description="evaluations between two fits of the predictor")
    patience: int = Field(default=2, ge=1, description="fits in a row without a lower error that end the evaluations")
    min_improvement: float = Field(
        default=0.02, ge=0, lt=1, description="share by which an error must fall to count as lower"
    )
    refine_evaluations: int = Field(
        default=24, ge=0, description="evaluations spent on what the evolution thinks is best"
    )
    refine_batch: int = Field(default=8, ge=1, description="of these, how many between two fits")

    dtypes: tuple[str, ...] = Field(
        default=(), description="types that each block may be in, f32 first; by default all are in the target's"
    )

    loss_evaluations: int = Field(
        default=48, ge=8, description="networks evaluated with random dtypes to learn what these cost, with dtypes"
    )

    predictor: Kind = Field(default="pairs", description="kind of accuracy predictor; mlp is the paper's")
    hidden: tuple[int, ...] = Field(default=(64, 64), min_length=1, description="hidden sizes of each perceptron")
    num_members: int = Field(default=5, ge=2, le=8, description="perceptrons in the ensemble")
    cross_validate: bool = Field(default=True, description="report the predictor's error on folds left out of fits")

    rule: Literal["accuracy", "paper", "all"] = Field(default="accuracy", description="how the sub-space is chosen")
    compare_rules: bool = Field(default=False, description="report what each sub-space rule costs against all of them")
    covered_only: bool = Field(
        default=False, description="search what the latency tables have rows for, where they have holes"
    )
    num_samples: int = Field(default=500, ge=20, description="random members per sub-space, the paper's delta")
    evolution: EvolutionConfig = EvolutionConfig()

    num_finalists: int = Field(
        default=4, ge=1, description="architectures that are compiled, measured and evaluated per round"
    )
    max_rounds: int = Field(default=3, ge=1, description="rounds of finalists at most")
    min_distance: int = Field(
        default=2, ge=1, description="genes by which two finalists of a round differ, where possible"
    )
    confidence: float = Field(
        default=0.5, ge=0.5, lt=1, description="chance wanted that a prediction inside measures inside"
    )
    latency_error: float | None = Field(
        default=None, ge=0, lt=1, description="relative standard error of the LUT, for margins; None: its calibration's"
    )

    num_cloud: int = Field(default=500, ge=0, description="random architectures stored for the picture of the space")
    pareto_generations: int = Field(default=40, ge=0, description="generations of the Pareto search; 0 leaves it out")

    @field_validator("dtypes")
    @classmethod
    def _known_dtypes(cls, dtypes: tuple[str, ...]) -> tuple[str, ...]:
        is_choice = len(dtypes) > 1 and dtypes[0] == "f32" and set(dtypes) <= DTYPES.keys()
        if dtypes and (not is_choice or len(set(dtypes)) < len(dtypes)):
            raise ValueError(
                f"expected dtypes of blocks among {', '.join(DTYPES)}, f32 first and another, without repeats, such as "
                f"f32,int8; got {','.join(dtypes)}"
            )
        return dtypes

    @model_validator(mode="after")
    def _initial_fits(self) -> SearchConfig:
        if self.initial_evaluations > self.num_evaluations:
            raise ValueError(
                f"initial_evaluations ({self.initial_evaluations}) must not exceed num_evaluations "
                f"({self.num_evaluations})"
            )
        return self

    @property
    def compares_rules(self) -> bool:
        """True if the regret of each rule is reported, as it is when all sub-spaces are searched anyway."""
        return self.compare_rules or self.rule == "all"

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> SearchConfig:
        """The settings from a mapping, such as a YAML file's.

        Raises:
            ConfigError: a key is unknown or a value out of range; the one line names the first fault.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            fault = error.errors()[0]
            *parents, name = map(str, fault["loc"] or ("",))
            model: type[BaseModel] = EvolutionConfig if parents == ["evolution"] else cls
            if fault["type"] == "extra_forbidden":
                key, known = ".".join([*parents, name]), ", ".join(sorted(model.model_fields))
                raise ConfigError(f"unknown key '{key}' in the search settings; known: {known}") from None
            if name not in model.model_fields or fault["type"] == "value_error":  # the message is ours
                raise ConfigError(fault["msg"].removeprefix("Value error, ")) from None
            words, limit = _LIMITS.get(fault["type"], ("", ""))
            expected = f"{words} {fault['ctx'][limit]}" if words else fault["msg"].removeprefix("Input should be ")
            what = f" ({description})" if (description := model.model_fields[name].description) else ""
            key = ".".join([*parents, name])
            raise ConfigError(
                f"search setting {key}: expected {expected}{what}; got {fault['input']!r}"[:400]
            ) from None
