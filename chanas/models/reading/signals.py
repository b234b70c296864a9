"""Operators of signals: Fourier transforms, as products with a matrix that is known, and weights of mel filters.

A complex number is two along the last axis, of which the second may be left out.
"""

from __future__ import annotations

import math

import numpy as np

from chanas.core.arrays import Array
from chanas.models.graph import Read
from chanas.models.reading.arithmetic import type_of
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import constant


@reads("DFT", attributes=["axis", "inverse", "onesided"])
def _dft(call: Call) -> Read:
    """The axis is an attribute before operator set 20."""
    make, shape = call.make, call.shape(0)
    rank = len(shape)
    given = int(call.attribute("axis", 1)) if call.opset < 20 else call.known_number(2, "axis") if call.has(2) else -2
    axis = call.in_range(given, rank)
    if axis == rank - 1 or shape[-1] > 2:
        raise call.refused(f"transforms axis {axis} of {list(shape)}; expected another axis than the last, of 1 or 2")
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    whole = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    length = call.known_number(1, "length") if call.has(1) else whole
    order = [a for a in range(rank - 1) if a != axis]
    x = make.transpose(call.input(0), [*order, axis, rank - 1])
    found = _transformed(call, x, _matrix(shape[axis], shape[-1], length, inverse, onesided))
    back = [*order, axis, rank - 1]
    return make.transpose(found, [back.index(a) for a in range(rank)])


@reads("STFT", attributes=["onesided"])
def _stft(call: Call) -> Read:
    """Transforms of frames, [N, frames, frequencies, 2], of a signal [N, length, 1 or 2] or [N, length]."""
    make, x = call.make, call.input(0)
    x = make.reshape(x, (*call.shape(0), 1)) if len(call.shape(0)) == 2 else x
    num, whole, parts = make.shape_of(x)
    step = call.known_number(1, "step")
    length = call.known_number(3, "length of frames") if call.has(3) else call.shape(2)[0] if call.has(2) else None
    if length is None or step < 1 or length > whole:
        raise call.refused(f"has frames of {length} numbers every {step} of {whole}; expected a window or a length")
    starts = np.arange(1 + (whole - length) // step) * step
    places = constant(starts[:, None] + np.arange(length), "int64")
    frames = make.take(x, make.reshape(places, (places.value.size,)), 1)
    frames = make.reshape(frames, (num, len(starts), length, parts))
    if call.has(2):
        frames = make.each("multiply", frames, make.reshape(call.input(2), (length, 1)))
    return _transformed(call, frames, _matrix(length, parts, length, False, bool(call.attribute("onesided", 1))))


def _transformed(call: Call, x: Read, matrix: Array) -> Read:
    """Values [..., length, parts] by a matrix [length · parts, new length, new parts]."""
    make = call.make
    *rest, length, parts = make.shape_of(x)
    flat = make.reshape(x, (math.prod(rest), length * parts))
    found = make.matmul(flat, constant(matrix.reshape(len(matrix), -1)))
    return make.reshape(found, (*rest, *matrix.shape[1:]))


def _matrix(length: int, parts: int, points: int, inverse: bool, onesided: bool) -> Array:
    """float64[length · parts, new length, new parts]: what each number adds to each one of the transform with so many
    points. Onesided are the frequencies up to the half: what comes out, or goes into an inverse, whose output is real.
    """
    basis = np.eye(length * parts).reshape(-1, length, parts)
    signal = basis[..., 0] + (1j * basis[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        return np.asarray(np.fft.irfft(signal, points, axis=1)[..., None])
    found = np.fft.ifft(signal, points, axis=1) if inverse else np.fft.fft(signal, points, axis=1)
    found = found[:, : points // 2 + 1] if onesided else found
    return np.stack([found.real, found.imag], axis=-1)


@reads("MelWeightMatrix", attributes=["output_datatype"])
def _mel_weight_matrix(call: Call) -> Read:
    """Triangles over the frequencies of a transform, evenly apart in mel: float[frequencies, bins]."""
    names = ("number of bins", "length", "sample rate", "lowest frequency", "highest frequency")
    bins, length, rate, low, high = (call.known(i, name).ravel()[0].item() for i, name in enumerate(names))
    edges_mel = (2595 * math.log10(1 + f / 700) for f in (low, high))
    first, last = edges_mel
    mel = np.arange(bins + 2) * ((last - first) / (bins + 2)) + first
    edges = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(int)
    k = np.arange(length // 2 + 1)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising = np.where((k >= left) & (k <= centre), (k - left) / np.maximum(centre - left, 1), 0.0)
    rising = np.where((centre == left) & (k == centre), 1.0, rising)
    falling = (right - k) / np.maximum(right - centre, 1)
    found = np.where((k >= centre) & (k < right), falling, rising)
    return constant(found, type_of(call, int(call.attribute("output_datatype", 1))))
