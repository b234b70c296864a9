"""Seconds of the steps from a finished network to one that runs fast, and the step that an error ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from chanas.errors import ChanasError, ModelError, describe


@dataclass(frozen=True)
class Watch:
    """Seconds of each step of a run; `source` is the network that was opened."""

    run_id: str
    source: str
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note the seconds of the body, and the step in an error that ends it.

        Raises:
            ModelError: something else than an expected error ended it: what other projects' code says of a network that
                it does not know.
        """
        start = time.monotonic()
        try:
            yield
        except ChanasError as error:
            error.stage = error.stage or name
            raise
        except (OSError, MemoryError):
            raise
        except Exception as error:
            unknown = ModelError(
                f"{self.source} cannot be used, as step '{name}' failed with {describe(error)}; the same "
                "command with --debug shows where"
            )
            unknown.stage = name
            raise unknown from error
        self.seconds[name] = time.monotonic() - start

    def copy(self) -> Watch:
        """The same steps, to which others may be added: a network may be tuned more than once."""
        return Watch(self.run_id, self.source, dict(self.seconds))
