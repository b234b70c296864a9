"""The run directory: where each stage reads and writes, and how a file is written so that no half of it is seen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_RUN = Path("runs/default")


@dataclass(frozen=True, init=False)
class RunDirectory:
    """All files of one project. Nothing is created before something is written."""

    root: Path

    def __init__(self, root: Path | str) -> None:
        object.__setattr__(self, "root", Path(root))

    @property
    def supernet(self) -> Path:
        """Folder of the supernet: `checkpoint.safetensors`, `checkpoint.json`, `checkpoints/`, `splits.json`,
        `metrics.jsonl`."""
        return self.root / "supernet"

    @property
    def records(self) -> Path:
        return self.root / "records.sqlite"

    @property
    def knobs(self) -> Path:
        """Folder of the files of knobs that trials came from."""
        return self.root / "knobs"

    @property
    def luts(self) -> Path:
        return self.root / "luts"

    def lut(self, target_name: str) -> Path:
        return self.luts / f"{target_name}.json"

    def finetuned(self, key: str, from_scratch: bool, images: str = "") -> RunDirectory:
        """The folder of one architecture that is trained on its own: checkpoint, splits and metrics. `images` is added
        to its name for images that are not the supernet's."""
        return RunDirectory(
            self.root / "finetuned" / key / f"{'from-scratch' if from_scratch else 'inherited'}{images}"
        )

    @property
    def search(self) -> Path:
        """Folder of the search: `evaluations.jsonl`, `result.json`."""
        return self.root / "search"

    @property
    def is_begun(self) -> bool:
        """True where a stage has left something."""
        return any(place.exists() for place in (self.supernet, self.records, self.luts, self.search, self.bundles))

    @property
    def modules(self) -> Path:
        """Folder of finalists that were compiled, by what they were compiled from."""
        return self.search / "modules"

    @property
    def bundle(self) -> Path:
        """The newest bundle: a link to one of `bundles`, or a folder where there are no links."""
        return self.root / "bundle"

    @property
    def bundles(self) -> Path:
        """Folder of all bundles, each called after its budget or as the search was told to."""
        return self.root / "bundles"

    @property
    def per_target(self) -> Path:
        """The file with the results of a search for each of several targets."""
        return self.search / "targets.json"

    def target_result(self, target_name: str) -> Path:
        """The result of one of several searches, as `search/result.json` is of a single one."""
        return self.search / "targets" / target_name / "result.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"
