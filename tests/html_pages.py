"""Pages of HTML, read as a browser reads them."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Checks that tags nest, and collects figures, ids, text and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.figures: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.tables: list[str] = []
        self.fetched: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in found:
            self.ids.append(str(found["id"]))
        if tag == "figure":
            self.figures.append(str(found["id"]).removeprefix("figure-"))
        if tag == "details":
            self.tables.append(self.figures[-1])
        if tag == "svg":
            self.labels += str(found["aria-labelledby"]).split()
        self.fetched += [str(v) for k, v in attrs if k in {"src", "href"} and v != "data:,"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
