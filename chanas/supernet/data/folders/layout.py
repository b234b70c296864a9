"""Layout of a data set's folders: which are its parts, such as `train` and `valid`, and which are its classes.

A network that is trained on parts as if they were classes looks fine and is of no use; so what can be read in two ways
is refused in one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chanas.errors import DataError
from chanas.supernet.data.folders.walk import FolderContent, look_into, walk

TRAIN, HOLDOUT, TEST = "train", "holdout", "test"
_WORDS = {
    **dict.fromkeys(("train", "training", "trn", "trainval"), TRAIN),
    **dict.fromkeys(("valid", "validation", "validate", "validating", "val", "vali"), HOLDOUT),
    **dict.fromkeys(("eval", "evaluation", "evaluate", "dev", "devel", "development", "holdout"), HOLDOUT),
    **dict.fromkeys(("test", "tests", "testing", "tst"), TEST),
}
_FILLERS = r"(?:sets?|data|datasets?|splits?|images?|imgs?|pics?|pictures?|photos?|folder|dir|parts?|samples?|full)"
_GLUED = re.compile(rf"({'|'.join(sorted(_WORDS, key=len, reverse=True))}){_FILLERS}?")
_FILLER = re.compile(rf"{_FILLERS}|\d+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_MAX_WRAPPERS = 8


@dataclass(frozen=True)
class Layout:
    """Classes of each part.

    root      folder that all lie below
    parts     folders of classes, by name, of `train`, and of `holdout` and `test` where there are such parts
    left_out  number of files that lie outside the class folders, by reason
    notes     what was decided, in lines
    """

    root: Path
    parts: Mapping[str, Mapping[str, Path]]
    left_out: Counter[str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Opened:
    """A folder, or the one inside it that it is only a wrapper of, and what is next to the folders in there."""

    path: Path
    content: FolderContent
    skipped: Counter[str]
    """Files on the way there."""

    @property
    def folders(self) -> list[str]:
        return self.content.folders

    def count_loose(self, left_out: Counter[str], where: str) -> None:
        """Count the files that lie in no folder."""
        left_out.update(self.content.left_out + self.skipped)
        if self.content.images:
            left_out[where] += len(self.content.images)


def find_layout(root: Path) -> Layout:
    """Parts and classes below `root`: `CLASS/IMAGE`, `PART/CLASS/IMAGE`, or either inside a single folder.

    Of `train`, `valid` and `test` together, `valid` is the holdout part. One part next to `train` is the test part,
    whatever its name, and so is one next to the classes themselves.

    Raises:
        DataError: what is there can be read in two ways, or a part lacks classes that another has.
    """
    left_out, notes = Counter[str](), list[str]()
    base = _open(root)
    if base.path != root:
        notes.append(f"{base.path.relative_to(root)} is taken, the only folder of {root} with others in it")
    base.count_loose(left_out, "next to the folders")
    roles = parts_of(base.folders)
    classes = [name for name in base.folders if name not in roles]
    opened = {name: _open(base.path / name) for name in roles}
    chosen = _chosen(base.path, roles, classes, opened)
    parts = {TRAIN: {name: base.path / name for name in (classes if chosen else base.folders)}}
    for role, name in chosen.items():
        parts[role] = {c: opened[name].path / c for c in opened[name].folders}
        opened[name].count_loose(left_out, f"next to the classes of {name}")
    unused = [name for name in roles if name not in chosen.values()] if chosen else []
    for name in [*unused, *(classes if TRAIN in chosen else ())]:
        if number := len(walk(base.path / name).images):
            left_out[f"in {name}"] += number
    if chosen:
        notes += part_notes({name: role for role, name in chosen.items()})
    elif roles:
        notes.append(f"'{next(iter(roles))}' is taken for a class, as {', '.join(classes[:3])} are")
    parts = {role: parts[role] for role in (TRAIN, HOLDOUT, TEST) if role in parts}
    return Layout(root, parts, left_out, tuple(notes))


def part_notes(roles: Mapping[str, str]) -> tuple[str, ...]:
    """The line about parts, given what each name stands for; none where there is one part."""
    train = ", ".join(name for name, role in roles.items() if role == TRAIN) or "the classes next to these"
    others = [f"{name} is the {role} split" for name, role in roles.items() if role != TRAIN]
    drawn = ["train", "gap", *({HOLDOUT, TEST} - set(roles.values()))]
    return (f"{', '.join(others)}; {', '.join(drawn)} are drawn from {train}",) if others else ()


def _open(path: Path) -> _Opened:
    """A folder, opened as long as it holds but one other, which holds folders."""
    content, skipped = look_into(path), Counter[str]()
    for _ in range(_MAX_WRAPPERS):
        if len(content.folders) != 1 or not (inner := look_into(path / content.folders[0])).folders:
            break
        skipped += content.left_out + Counter({f"next to {content.folders[0]}": len(content.images)})
        path, content = path / content.folders[0], inner
    return _Opened(path, content, skipped)


def _chosen(
    base: Path, roles: Mapping[str, str], classes: Sequence[str], opened: Mapping[str, _Opened]
) -> dict[str, str]:
    """The folder that is each part; none where all folders are classes. Without `train`, the classes next to the others
    are for training."""
    if not roles:
        return {}
    flat = [name for name in roles if not opened[name].folders]
    train = [name for name, role in roles.items() if role == TRAIN]
    if classes and train == list(roles):
        if train == flat:  # trains, among vehicles
            return {}
        if others := [name for name in classes if walk(base / name).images]:
            raise DataError(
                f"{base} has class folders in {train[0]}, and images in {_named(others)} next to it; move one of them "
                f"elsewhere, or rename {train[0]} if it is a class"
            )
    if not train and not classes:
        raise DataError(
            f"{base} holds {_named(list(roles))}, but no part to train on; expected {base}/train/CLASS/IMAGE"
        )
    if train and train[0] in flat:
        raise _flat(base, train[0], opened)
    taken: dict[str, str] = {}
    for name, role in roles.items():
        if name not in flat and taken.setdefault(role, name) != name:
            raise DataError(
                f"both {taken[role]} and {name} in {base} look like its {role} part; keep one of them there"
            )
    if not taken.keys() - {TRAIN}:
        for name in flat:  # ImageNet's validation images come this way
            if opened[name].content.images:
                raise _flat(base, name, opened)
    if HOLDOUT in taken and TEST not in taken:
        taken[TEST] = taken.pop(HOLDOUT)
    return taken


def _flat(base: Path, name: str, opened: Mapping[str, _Opened]) -> DataError:
    number = len(opened[name].content.images)
    return DataError(
        f"{base / name} holds {number} images but no class folders; sort its images into {base / name}/CLASS/IMAGE, or "
        "move it elsewhere (a class needs another name)"
    )


def parts_of(names: Sequence[str]) -> dict[str, str]:
    """The names that stand for parts, whatever their case and separators, each with its part: `Training`, `test_set`,
    `val2017`; and `seg_train` where `seg_test` is there, too."""
    plain, others = dict[str, str](), dict[str, dict[str, str]]()
    for name in names:
        roles, rest = _roles_and_rest(name)
        if len(roles) == 1 and not rest:
            plain[name] = roles[0]
        elif len(roles) == 1:
            others.setdefault(rest, {})[name] = roles[0]
    for same in others.values():
        if TRAIN in same.values() and len(set(same.values())) > 1:
            plain |= same
    return {name: plain[name] for name in names if name in plain}


def parts_of_files(names: Sequence[str]) -> dict[str, str]:
    """The part of each file of a data set, by a word of its name such as `set-train-0001.tar`; empty where they are not
    of several parts.

    Raises:
        DataError: some are of parts, and others are not.
    """
    found = {name: _roles_and_rest(name)[0] for name in names}
    roles = {name: parts[0] for name, parts in found.items() if len(set(parts)) == 1}
    if len(set(roles.values())) < 2:
        return {}
    if strange := [name for name in names if name not in roles]:
        raise DataError(f"{next(iter(roles))} is named after a part, but {_named(strange)} is not; name all, or none")
    if TRAIN not in roles.values():
        raise DataError(f"{_named(names)} are named after parts, but none of them is to train on")
    only_test = TEST not in roles.values()
    return {name: TEST if only_test and role == HOLDOUT else role for name, role in roles.items()}


def _roles_and_rest(name: str) -> tuple[list[str], str]:
    """Parts that words of a name stand for, and its other words that say something."""
    roles, rest = list[str](), list[str]()
    for word in _WORD.findall(name):
        if (found := _GLUED.fullmatch(word.lower())) is not None:
            roles.append(_WORDS[found[1]])
        elif _FILLER.fullmatch(word.lower()) is None:
            rest.append(word.lower())
    return roles, " ".join(rest)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
