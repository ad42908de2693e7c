"""HTML from Python: whatever is not markup already is escaped.

In: text of anybody's (names from stores, messages), elements. Out: markup.
"""

from __future__ import annotations

import html

_UNSHOWN = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")
"""Control characters, which HTML does not allow."""


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    """Any text as what a browser shows as that text."""
    if isinstance(text, Markup):
        return text
    plain = str(text).translate(_UNSHOWN).encode("utf-8", "replace").decode("utf-8")
    return Markup(html.escape(plain, quote=True))


def joined(*parts: object) -> Markup:
    """One after another; None is left out."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """An element.  attributes: class_ for class, view_box is not HTML's: names are taken as they are but for a last
    underscore, and with - for other ones; None: left out; True: without a value."""
    return Markup(f"<{tag}{_attributes(attributes)}>{joined(*content)}</{tag}>")


def lone(tag: str, **attributes: object) -> Markup:
    """An element of SVG that holds nothing."""
    return Markup(f"<{tag}{_attributes(attributes)}/>")


def named(text: object) -> Markup:
    """A name of somebody's: its writing direction is its own affair."""
    return element("bdi", text)


def _attributes(attributes: dict[str, object]) -> str:
    found = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        plain = name.removesuffix("_").replace("_", "-")
        found.append(f" {plain}" if value is True else f' {plain}="{escaped(value)}"')
    return "".join(found)
