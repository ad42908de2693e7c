"""Build HTML in Python. Everything that is not `Markup` is escaped.

Inputs: untrusted text (names from stores, messages), elements. Output: markup.
"""

from __future__ import annotations

import html

_UNSHOWN = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")
"""Replacements of control characters, which HTML does not allow."""


class Markup(str):
    """A string that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    """Escape text for HTML. `Markup` is returned unchanged."""
    if isinstance(text, Markup):
        return text
    plain = str(text).translate(_UNSHOWN).encode("utf-8", "replace").decode("utf-8")
    return Markup(html.escape(plain, quote=True))


def joined(*parts: object) -> Markup:
    """Concatenate parts. None is omitted."""
    return Markup("".join(escaped(part) for part in parts if part is not None))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """Return an element.

    Attribute names lose a final underscore (`class_`), and other underscores become hyphens. The values None and False
    omit an attribute; True writes it without a value.
    """
    return Markup(f"<{tag}{_attributes(attributes)}>{joined(*content)}</{tag}>")


def lone(tag: str, **attributes: object) -> Markup:
    """Return an empty element of SVG."""
    return Markup(f"<{tag}{_attributes(attributes)}/>")


def named(text: object) -> Markup:
    """Return an untrusted name, isolated so that its writing direction does not affect the text around it."""
    return element("bdi", text)


def _attributes(attributes: dict[str, object]) -> str:
    """Return attributes as HTML."""
    parts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        plain = name.removesuffix("_").replace("_", "-")
        parts.append(f" {plain}" if value is True else f' {plain}="{escaped(value)}"')
    return "".join(parts)
