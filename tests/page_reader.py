"""The structure and the text of a page of HTML."""

from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "img", "link", "br", "hr", "input", "source"}


class Page(HTMLParser):
    """Elements, text and scripts of a page; refuses elements that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []  # cells of every row of a table
        self.text = self.island = self.script = self.style = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        if where == "script" and self.elements[-1][1]:
            self.island += data
        elif where == "script":
            self.script += data
        elif where == "style":
            self.style += data
        else:
            self.text += data
            if {"th", "td"} & set(self.open):
                self.rows[-1][-1] += data.strip()

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def tags(self) -> Counter[tuple[str, tuple[str, ...]]]:
        """Count the elements of each tag with each set of attributes."""
        return Counter((tag, tuple(sorted(attrs))) for tag, attrs in self.elements)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())
