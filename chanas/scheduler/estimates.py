"""Seconds that stages are expected to take, learned from those that ended."""

from __future__ import annotations

from chanas.scheduler.jobs import Stage

UNKNOWN_S = 1.0
"""The guess for a kind that no job has run or guessed yet: any length does, as all are alike."""


class Estimates:
    """Exponential means by job and kind, and by kind alone: of a job that has run none, those of others are taken.

    weight  of the newest observation; 0.3 forgets nine tenths after six or seven of them
    """

    def __init__(self, weight: float = 0.3) -> None:
        self.weight = weight
        self._of_jobs: dict[tuple[str, str], float] = {}
        self._of_kinds: dict[str, float] = {}

    def learn(self, job: str, kind: str, seconds: float) -> None:
        """Take in that a stage of this kind took so long."""
        known = self._of_jobs.get((job, kind), seconds)
        self._of_jobs[job, kind] = known + self.weight * (seconds - known)
        known = self._of_kinds.get(kind, seconds)
        self._of_kinds[kind] = known + self.weight * (seconds - known)

    def expected_s(self, job: str, stage: Stage) -> float:
        """Seconds that this job's stages of the kind took; before the first, its own guess, or other jobs'."""
        known = self._of_jobs.get((job, stage.kind), stage.expected_s)
        return self._of_kinds.get(stage.kind, UNKNOWN_S) if known is None else known

    def expected_of_kind_s(self, job: str, kind: str) -> float:
        """Seconds that this job's stages of the kind took; before the first, other jobs'."""
        return self._of_jobs.get((job, kind), self._of_kinds.get(kind, UNKNOWN_S))

    def forget(self, job: str) -> None:
        """Drop what was learned of a job alone; its kinds keep it."""
        self._of_jobs = {key: mean for key, mean in self._of_jobs.items() if key[0] != job}
