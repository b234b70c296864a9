"""What may be resumed, and what may be overwritten."""

from __future__ import annotations

from chanas.arch import SearchSpace
from chanas.errors import CheckpointError
from chanas.run import RunDirectory
from chanas.supernet.checkpoint import checkpoint_path, read_header
from chanas.supernet.phases import TrainConfig

# config keys that may change when a run is resumed: they don't change what is computed
_FREE_KEYS = frozenset({"checkpoint_every", "evaluate_every", "log_every"})


def stored_setup(run: RunDirectory) -> tuple[SearchSpace, TrainConfig]:
    """Search space and config of the checkpoint in `run`, to resume with.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    header = read_header(run)
    if header is None:
        raise CheckpointError(f"nothing to resume: {checkpoint_path(run)} does not exist; start without --resume")
    return SearchSpace.from_json(header["space"]), TrainConfig.from_json(header["config"], "checkpoint config")


def refuse_existing(run: RunDirectory) -> None:
    """A checkpoint is not overwritten unasked, unless nothing was trained yet.

    Raises:
        CheckpointError: there is a checkpoint with training in it, or a damaged one.
    """
    header = read_header(run)
    if header is None or header["step"] == 0:
        return
    steps = f"{header['step']} of {header['num_steps']} steps"
    state = "a finished run" if header["done"] else f"a run that did {steps}"
    raise CheckpointError(
        f"{checkpoint_path(run)} holds {state}; use --resume to continue it, or --overwrite to train anew"
    )


def check_resumable(run: RunDirectory, space: SearchSpace, config: TrainConfig) -> None:
    """Whether the checkpoint in `run` is one of this space and config.

    Raises:
        CheckpointError: it isn't, or there is none, or it is damaged.
    """
    stored_space, stored_config = stored_setup(run)
    if stored_space.digest != space.digest:
        raise CheckpointError(
            f"checkpoint {checkpoint_path(run)} is of space '{stored_space.name}' ({stored_space.digest}), not of "
            f"'{space.name}' ({space.digest}); resume with the space it was made with, or train anew with --overwrite"
        )
    stored, given = stored_config.to_json(), config.to_json()
    if changed := [key for key in sorted(set(given) - _FREE_KEYS) if stored[key] != given[key]]:
        raise CheckpointError(
            f"checkpoint {checkpoint_path(run)} was made with another {', '.join(changed)}; "
            "resume with the config it was made with, or train anew with --overwrite"
        )
