"""The commands that can be swept: what each needs of the machine, and the figures that its runs are compared by."""

from __future__ import annotations

from dataclasses import dataclass

from chanas.errors import ConfigError, unknown_name
from chanas.scheduler.jobs import DEVICE, HOST


@dataclass(frozen=True)
class Use:
    """A command's use of the machine.

    resource  `device`: it times, and so runs alone; `host`: several may run side by side
    metrics   columns that tell the most about a run, the first one first
    """

    resource: str
    metrics: tuple[str, ...] = ()


_TABLE = ("table.mape", "table.num_blocks", "table.built_in_s")
_BUNDLE = ("bundle.latency_s", "bundle.top1_holdout", "bundle.top1_test")

USES = {
    "ablate": Use(DEVICE, ("ablation.untuned.points_lost", "ablation.pytorch.points_lost")),
    "bench": Use(DEVICE),
    "bundle show": Use(HOST),
    "demo": Use(DEVICE, _BUNDLE),
    "doctor": Use(DEVICE, ("printed.timing.median_s", "printed.timing.spread")),
    "eval": Use(HOST, ("printed.top1",)),
    "export": Use(DEVICE),
    "finetune": Use(HOST, ("finetuned.top1_only",)),
    "lut adapt": Use(DEVICE),
    "lut calibrate": Use(DEVICE, _TABLE[:1]),
    "lut check": Use(DEVICE, ("printed.median_ratio", "printed.num_within")),
    "lut compare": Use(HOST, ("printed.blocks.geometric_mean", "printed.architectures.kendall_tau")),
    "lut fill": Use(DEVICE, _TABLE),
    "lut predict": Use(HOST, ("printed.predicted_error",)),
    "lut show": Use(HOST, ("printed.num_rows",)),
    "predict": Use(HOST),
    "prescheduler": Use(DEVICE, _TABLE),
    "quantize": Use(DEVICE),
    "records export": Use(HOST),
    "records import": Use(HOST),
    "records propose": Use(HOST, ("printed.within_5_percent.share", "printed.best.ms")),
    "records show": Use(HOST),
    "records train": Use(HOST),
    "report": Use(HOST),
    "search": Use(DEVICE, _BUNDLE),
    "space show": Use(HOST),
    "target check": Use(DEVICE),
    "target list": Use(HOST),
    "target show": Use(HOST),
    "train-supernet": Use(HOST, ("supernet.top1_largest", "supernet.top1_smallest")),
    "tune": Use(DEVICE, ("network.latency_s", "network.seconds.tune")),
}

NOT_SWEPT = {
    "device list": "it tells what others have",
    "device serve": "it does not end by itself",
    "explain": "there is nothing to vary",
    "import-supernet": "there is nothing to vary",
    "jobs add": "it is about jobs that run",
    "jobs cancel": "it is about jobs that run",
    "jobs kill": "it is about jobs that run",
    "jobs pause": "it is about jobs that run",
    "jobs resume": "it is about jobs that run",
    "jobs run": "it runs several jobs itself",
    "jobs status": "it is about jobs that run",
    "serve token add": "it is about who may use a service",
    "serve token list": "it is about who may use a service",
    "serve token remove": "it is about who may use a service",
    "service cancel": "it is about the jobs of a service",
    "service fetch": "it is about the jobs of a service",
    "service list": "it is about the jobs of a service",
    "service log": "it is about the jobs of a service",
    "service pause": "it is about the jobs of a service",
    "service resume": "it is about the jobs of a service",
    "service show": "it is about the jobs of a service",
    "service submit": "it is about the jobs of a service",
    "service watch": "it is about the jobs of a service",
    "sweep run": "it is a sweep",
    "sweep show": "it shows a sweep",
}
"""Commands that are no use in a sweep, and why."""


def use_of(command: str) -> Use:
    """The use that a command makes of the machine.

    Raises:
        ConfigError: there is no such command, or it cannot be swept.
    """
    if command in NOT_SWEPT:
        raise ConfigError(f"command '{command}' can't be swept: {NOT_SWEPT[command]}")
    if command not in USES:
        raise ConfigError(unknown_name("command", command, USES))
    return USES[command]
