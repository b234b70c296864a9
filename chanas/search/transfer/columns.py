"""Features of architectures of any space, from a table of their choices.

Notation: N architectures, C columns of the table, P slots, V words of a vocabulary, F features.
    slot      a column, or one place of a column whose cells are lists: what is chosen there, "" beyond a list's end
    choices   one-hot [N, Σ V]: the word in each slot, of slots that have few words
    quantity  a slot of many numbers (a resolution, a width), standardised
    group     slots of the same words: layers of a network, edges of a cell

A network's latency is roughly the sum of its layers', and what is regressed on features is its logarithm. How a step of
one layer counts depends therefore on the rest: products, and logarithms of counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from chanas.core.arrays import FloatArray
from chanas.files.csv_files import as_numbers
from chanas.files.device_columns import name_things

# A slot of numbers with more values than this is a quantity, not a choice.
_MAX_CHOICES = 16
# Columns of products of two slots' words: all pairs where that is no more than these, else those of one place.
_MAX_PRODUCTS = 600


def slots_of(columns: Mapping[str, Sequence[str]]) -> list[npt.NDArray[np.str_]]:
    """Words [N] of each slot, in the order of the columns; a cell of several words apart by blanks is a list."""
    return [slot for _, slots in _by_column(columns) for slot in slots]


def names_of_rows(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Columns that have a slot of so many words that these can only be names of rows; others are features."""
    return [name for name, slots in _by_column(columns) if any(name_things(slot.tolist()) for slot in slots)]


def choice_columns(columns: Mapping[str, Sequence[str]]) -> FloatArray:
    """float64[N, Σ V] of zeros and ones: the word of each slot that is no quantity."""
    parts = [_one_hot(slot) for slot in slots_of(columns) if not _is_quantity(slot)]
    return np.hstack(parts) if parts else np.zeros((_num_rows(columns), 0))


def quantities(columns: Mapping[str, Sequence[str]]) -> FloatArray:
    """float64[N, Q]: numbers of slots that have many, standardised."""
    parts = [numbers for slot in slots_of(columns) if _is_quantity(slot) and (numbers := as_numbers(slot)) is not None]
    if not parts:
        return np.zeros((_num_rows(columns), 0))
    x = np.column_stack(parts)
    out: FloatArray = (x - x.mean(axis=0)) / x.std(axis=0)
    return out


def column_features(columns: Mapping[str, Sequence[str]]) -> FloatArray:
    """float64[N, F] from columns of N cells.

    Columns: choices; in each group how often each word is there, its logarithm and products of these numbers; words of
    two slots that are there together; quantities, their squares and cubes, and choices times both of the former.
    """
    by_column = _by_column(columns)
    slots = [[slot for slot in own if not _is_quantity(slot)] for _, own in by_column]
    choices, q = choice_columns(columns), quantities(columns)
    parts = [choices, q, q**2, q**3]
    parts += [choices * power for column in q.T for power in (column[:, None], column[:, None] ** 2)]
    for group in _groups([slot for own in slots for slot in own]):
        parts += _counts(group)
    parts += _products(slots)
    return np.hstack(parts)


def _num_rows(columns: Mapping[str, Sequence[str]]) -> int:
    return len(next(iter(columns.values())))


def _by_column(columns: Mapping[str, Sequence[str]]) -> list[tuple[str, list[npt.NDArray[np.str_]]]]:
    """Slots of each column."""
    out = []
    for name, cells in columns.items():
        lists = [cell.split() for cell in cells]
        length = max(len(words) for words in lists)
        padded = np.array([words + [""] * (length - len(words)) for words in lists], dtype=str)
        out.append((name, list(padded.reshape(len(lists), length).T)))
    return out


def _is_quantity(slot: npt.NDArray[np.str_]) -> bool:
    return len(np.unique(slot)) > _MAX_CHOICES and as_numbers(slot) is not None


def _one_hot(slot: npt.NDArray[np.str_]) -> FloatArray:
    words, codes = np.unique(slot, return_inverse=True)
    out: FloatArray = np.eye(len(words))[codes]
    return out


def _groups(slots: Sequence[npt.NDArray[np.str_]]) -> list[list[npt.NDArray[np.str_]]]:
    """Slots of the same words, where there are several; "" counts for none."""
    found: dict[tuple[str, ...], list[npt.NDArray[np.str_]]] = {}
    for slot in slots:
        found.setdefault(tuple(word for word in np.unique(slot).tolist() if word), []).append(slot)
    return [group for group in found.values() if len(group) > 1]


def _counts(group: Sequence[npt.NDArray[np.str_]]) -> list[FloatArray]:
    words = [word for word in np.unique(np.array(group)).tolist() if word]
    counts = np.column_stack([sum((slot == word).astype(np.float64) for slot in group) for word in words])
    first, second = np.triu_indices(len(words))
    return [counts, np.log1p(counts), counts[:, first] * counts[:, second]]


def _products(slots: Sequence[Sequence[npt.NDArray[np.str_]]]) -> list[FloatArray]:
    """One-hot of pairs of words: of all pairs of slots, or of those at the same place of lists of the same length."""
    flat = [slot for own in slots for slot in own]
    num_words = np.array([len(np.unique(slot)) for slot in flat])
    num_products = (int(num_words.sum()) ** 2 - int((num_words**2).sum())) // 2
    if num_products <= _MAX_PRODUCTS:
        pairs = [(a, b) for i, a in enumerate(flat) for b in flat[i + 1 :]]
    else:
        lists = [own for own in slots if len(own) > 1]
        pairs = [
            (a, b)
            for i, one in enumerate(lists)
            for other in lists[i + 1 :]
            if len(one) == len(other)
            for a, b in zip(one, other, strict=True)
        ]
    return [(_one_hot(a)[:, :, None] * _one_hot(b)[:, None]).reshape(len(a), -1) for a, b in pairs]
