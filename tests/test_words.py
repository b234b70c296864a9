"""Docstrings of the package begin with an imperative or a noun phrase, and names are words of the field."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "chanas").rglob("*.py"))
QUESTION_WORDS = {"what", "whether", "how", "why", "where", "when", "which", "who", "whose", "that"}
NO_SUBJECT = {"after", "as", "before", "does", "from", "of", "so", "then", "there", "to"}

WORDS_OF_THE_FIELD = {"foretell": "predict", "foretells": "predicts", "foretold": "predicted"}


@functools.cache
def parsed() -> dict[str, ast.Module]:
    """The modules of the package, by their paths from the root."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of docstrings: of modules, classes and functions, and those below a constant or a field."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for before, statement in zip([None, *node.body], node.body, strict=False):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    if before is None or isinstance(before, ast.Assign | ast.AnnAssign):
                        yield statement.lineno, text


def first_word(text: str) -> str:
    return text.split()[0].partition("'")[0].strip("`.,:;").lower()


def test_a_docstring_begins_with_an_imperative_or_a_noun() -> None:
    odd = QUESTION_WORDS | NO_SUBJECT
    found = [(f"{name}:{line}", text) for name, tree in parsed().items() for line, text in docstrings(tree)]
    assert len(found) > len(MODULES)
    assert {where: text for where, text in found if first_word(text) in odd} == {}


def parts_of_names(tree: ast.AST) -> set[str]:
    """The words of all names that a module defines or uses: `_foretold_s` -> foretold, s."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
                names.add(name)
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                names.add(name)
    return {part for name in names for part in name.lower().split("_")}


def test_names_are_words_of_the_field() -> None:
    used = {name: parts_of_names(tree) for name, tree in parsed().items()}
    assert {name: odd for name, words in used.items() if (odd := words & WORDS_OF_THE_FIELD.keys())} == {}


def test_the_words_of_a_name_are_found_wherever_names_are() -> None:
    source = "from a import b_c\nclass Foretold: pass\ndef d(e_f):\n    g.h_i = j"
    assert parts_of_names(ast.parse(source)) == {"b", "c", "foretold", "d", "e", "f", "g", "h", "i", "j"}


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module has."""',
        'LIMIT = 1\n"""How far it goes."""',
        'class A:\n    size: int\n    """Which one it is."""',
        'def f():\n    """Whether it is one."""',
        'class A:\n    def f(self):\n        """That\'s what it does."""',
    ],
)
def test_a_question_word_is_found_wherever_docstrings_are(source: str) -> None:
    assert [first_word(text) in QUESTION_WORDS for _, text in docstrings(ast.parse(source))] == [True]
