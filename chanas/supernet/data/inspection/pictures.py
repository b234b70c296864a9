"""Facts of all pictures of a set: known from the cache, or found by reading them, many at a time."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from chanas.core.arrays import IntArray
from chanas.core.progress import progress_bar
from chanas.errors import DataError
from chanas.network.pictures import read_picture
from chanas.supernet.data.image_source import EncodedSource, short_digest
from chanas.supernet.data.inspection.cache import PictureFacts, open_cache

_NAME = "it"  # of a picture in what the reader says: files may be moved
Channels = tuple[float, float, float]
_SAMPLE = (16, 16)  # pixels of a picture that its moments and its colour are taken from
_GREY_LEVELS = 8  # channels of a grey picture saved as JPEG differ by so many of 255 at most
_CHUNK_BYTES, _CHUNK_PICTURES = 8 << 20, 64
_SILENT_S, _KEEP_S = 2.0, 10.0
_MIN_THREADS = 8  # a slow disk answers several at once


def picture_facts(source: EncodedSource, progress: bool) -> list[PictureFacts]:
    """Facts of the pictures of a source, in its order. What was read is remembered, of an interrupted call too."""
    with open_cache() as cache:
        facts = cache.known(source.stamps)
        missing = np.array([i for i in range(len(source.keys)) if i not in facts], dtype=np.int64)
        pending: list[int] = []
        kept_at = began = time.monotonic()

        def keep() -> None:
            # what could not be read may be read the next time, and what has no stamp is not known again
            whole = [i for i in pending if facts[i].digest and source.stamps[i, 0]]
            cache.keep(source.stamps[whole], [facts[i] for i in whole])
            pending.clear()

        with contextlib.ExitStack() as stack:
            stack.callback(keep)
            bar = None
            for chunk, found in _read(source, missing):
                facts.update(zip(chunk, found, strict=True))
                pending += chunk
                now = time.monotonic()
                if bar is not None:
                    bar.update(len(chunk))
                elif progress and now - began > _SILENT_S:
                    done = len(facts)
                    bar = stack.enter_context(progress_bar(len(source.keys), "check", "picture", initial=done))
                if now - kept_at > _KEEP_S:
                    keep()
                    kept_at = now
    return [facts[i] for i in range(len(source.keys))]


def _read(source: EncodedSource, indices: IntArray) -> Iterator[tuple[list[int], list[PictureFacts]]]:
    """Yield the pictures at `indices`, some at a time, in order."""
    ends = np.cumsum(source.sizes[indices]) // _CHUNK_BYTES + np.arange(len(indices)) // _CHUNK_PICTURES
    chunks = [part.tolist() for part in np.split(indices, np.flatnonzero(np.diff(ends)) + 1) if len(part)]
    pool = ThreadPoolExecutor(max(_MIN_THREADS, len(os.sched_getaffinity(0))))
    try:
        yield from zip(chunks, pool.map(lambda chunk: [_facts(source, i) for i in chunk], chunks), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _facts(source: EncodedSource, index: int) -> PictureFacts:
    try:
        data = source.read(index)
    except OSError as error:
        return PictureFacts(0, fault=f"cannot be read ({error.strerror or error})")
    digest = short_digest(data)
    try:
        picture = read_picture(io.BytesIO(data), _NAME)
    except DataError as error:
        fault = str(error).partition("; ")[0].removeprefix(f"{_NAME} ")  # without the advice, which is about one file
        return PictureFacts(digest, fault=fault)
    return facts_of(picture.image, digest, picture.remark)


def facts_of(image: Image.Image, digest: int = 0, remark: str | None = None) -> PictureFacts:
    """Facts of a decoded RGB picture."""
    pixels = np.asarray(image.resize(_SAMPLE, Image.Resampling.NEAREST), np.float32).reshape(-1, 3)
    is_grey = int(np.ptp(pixels, axis=1).max() <= _GREY_LEVELS)
    pixels /= 255.0
    moments = np.concatenate([pixels.mean(0), np.square(pixels).mean(0)])
    return PictureFacts(digest, *image.size, is_grey, moments.tobytes(), remark)


def mean_and_std(facts: Sequence[PictureFacts]) -> tuple[Channels, Channels]:
    """Mean and deviation of each channel, in [0, 1], over pictures that all count the same; 0 and 1 without any."""
    if not facts:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    moments = np.frombuffer(b"".join(of.moments for of in facts), np.float32).reshape(-1, 2, 3).mean(0, np.float64)
    std = np.sqrt(np.maximum(moments[1] - moments[0] ** 2, 0.0))
    (r, g, b), (std_r, std_g, std_b) = moments[0].tolist(), std.tolist()
    return (r, g, b), (std_r, std_g, std_b)
