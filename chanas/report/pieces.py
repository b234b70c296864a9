"""Pieces of HTML. All text that comes in is plain and gets escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from chanas.core.units import format_latency
from chanas.report.svg import Figure

_LONG = 24  # a cell of more characters may break anywhere


def document(title: str, sections: Iterable[str]) -> str:
    """A whole page, with the style of all pages."""
    style = (resources.files("chanas.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{style}</style>\n'
        f"</head>\n<body>\n<main>\n{chr(10).join(sections)}\n</main>\n</body>\n</html>\n"
    )


def missing(what: str, command: str) -> str:
    """The line that stands where a stage has not run yet."""
    return f'<p class="missing">{escape(what)} is not there yet: run <code>{escape(command)}</code>.</p>'


def paragraph(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def figure(name: str, found: Figure | None, caption: str, otherwise: str = "") -> str:
    """A drawing with its caption and, folded away, its data; where there is none, a line that says why."""
    if found is None:
        return paragraph(otherwise) if otherwise else ""
    data = table(found.head, found.rows, found.numbers, label=f"Data of the figure {name}")
    return (
        f'<figure id="figure-{name}">{_scrolling(found.drawing, f"Figure {name}")}'
        f"<figcaption>{escape(caption)}</figcaption>"
        f"<details><summary>The same as a table</summary>{data}</details></figure>"
    )


def _scrolling(content: str, label: str) -> str:
    """A frame that scrolls where its content is wider than the page, with the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">{content}</div>'


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: int = 0,
    winner: int | None = None,
    label: str = "Table",
) -> str:
    """The last `numbers` columns stand to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        first = len(row) - numbers
        kinds = ["number" if i >= first else "long" if len(str(v)) > _LONG else "" for i, v in enumerate(row)]
        css = [f' class="{kind}"' if kind else "" for kind in kinds]
        return "".join(f"<{tag}{c}>{escape(str(v))}</{tag}>" for c, v in zip(css, row, strict=True))

    body = "".join(
        f"<tr{' class=' + chr(34) + 'winner' + chr(34) if i == winner else ''}>{cells('td', row)}</tr>"
        for i, row in enumerate(rows)
    )
    header = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    return _scrolling(f"<table>{header}<tbody>{body}</tbody></table>", label)


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def seconds(value: float | None) -> str:
    return "–" if value is None or value <= 0 else format_latency(value).replace(" us", " µs")


def tile(value: str, label: str) -> str:
    """One number that matters, and what it is."""
    return f'<div class="tile"><b>{escape(value)}</b>{escape(label)}</div>'
