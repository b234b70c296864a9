"""The inspection of a source: its pictures read, the bad ones named or left out, and the sum of what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chanas.errors import DataError
from chanas.supernet.data.image_source import EncodedSource, ImageSource, named
from chanas.supernet.data.inspection.cache import PictureFacts
from chanas.supernet.data.inspection.copies import count_copies
from chanas.supernet.data.inspection.pictures import facts_of, mean_and_std, picture_facts
from chanas.supernet.data.inspection.summary import Inspection

_SAMPLE = 1000


def inspect_encoded(source: EncodedSource, skip_bad: bool, progress: bool) -> tuple[EncodedSource, Inspection]:
    """Read every picture of a source once; those that cannot be used are left out where `skip_bad` is set.

    Raises:
        DataError: there are some, and it is not set; the message names the first ten and says how many there are.
    """
    facts = picture_facts(source, progress)
    bad = {source.keys[i]: of.fault for i, of in enumerate(facts) if of.fault is not None}
    if bad and not skip_bad:
        listed = named([f"{key} {fault}" for key, fault in bad.items()])
        raise DataError(
            f"{len(bad)} of {len(facts)} images of {source.name} cannot be used: {listed}; replace or remove them, or "
            "leave them out with --skip-bad"
        )
    if bad:
        source = source.taking(np.array([i for i, of in enumerate(facts) if of.fault is None], dtype=np.int64))
        facts = [of for of in facts if of.fault is None]
    source = replace(source, digests=np.array([of.digest for of in facts], dtype=np.int64))
    return source, _sum_up(source, facts, bad)


def inspect_sample(source: ImageSource) -> Inspection:
    """Look at some pictures of a source that is in memory or another's."""
    some = np.unique(np.linspace(0, len(source.labels) - 1, _SAMPLE).astype(int)).tolist() if len(source.labels) else []
    return _sum_up(source, [facts_of(source.image(i)) for i in some], {})


def _sum_up(source: ImageSource, facts: Sequence[PictureFacts], bad: dict[str, str]) -> Inspection:
    num_classes = len(source.class_names)
    by_class = np.bincount(source.labels, minlength=num_classes).tolist()
    is_test, is_holdout = source.is_test, source.is_holdout
    part = (0 if is_holdout is None else is_holdout * 1) + (0 if is_test is None else is_test * 2)
    part = np.broadcast_to(part, len(source.labels))
    by_part = {name: int((part == number).sum()) for number, name in enumerate(("train", "holdout", "test"))}
    sampled = len(facts) < len(source.labels)
    own = facts if sampled else [of for of, number in zip(facts, part.tolist(), strict=True) if number == 0]
    mean, std = mean_and_std(own)
    num_copies, notes = count_copies(source)
    sizes = np.array([(of.width, of.height) for of in facts]).reshape(-1, 2)
    return Inspection(
        name=source.name,
        num_by_class=dict(zip(source.class_names, by_class, strict=True)),
        num_by_part={name: number for name, number in by_part.items() if number},
        median_size=(int(np.median(sizes[:, 0])), int(np.median(sizes[:, 1]))) if len(sizes) else (0, 0),
        is_one_size=not sampled and len(np.unique(sizes, axis=0)) == 1,
        grey_share=sum(of.is_grey for of in facts) / max(1, len(facts)),
        mean=mean,
        std=std,
        left_out=source.left_out,
        remarks=Counter(of.remark for of in facts if of.remark is not None),
        num_copies=num_copies,
        bad=bad,
        notes=(*source.notes, *notes),
    )
