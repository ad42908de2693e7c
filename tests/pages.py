"""Parse HTML pages: elements, texts and external links."""

from __future__ import annotations

from html.parser import HTMLParser

_ALONE = {"meta", "link", "line", "circle", "path", "br"}
"""Elements without content."""


class Read(HTMLParser):
    """A page or a part of one.

    `tags` lists elements with their attributes in order. `text` is the displayed text with a line for each element.
    `wrong` lists unmatched end tags.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self._texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _ALONE:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self._texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self._texts)

    def count(self, tag: str, class_: str = "") -> int:
        """Count the elements of a name and a class."""
        return sum(name == tag and (not class_ or class_ in (at.get("class") or "").split()) for name, at in self.tags)

    def elsewhere(self) -> list[str]:
        """Return the addresses that a browser would load."""
        links = [at.get(name) for _, at in self.tags for name in ("src", "href", "data", "action")]
        return [link for link in links if link and not link.startswith(("#", "data:"))]
