"""Stand-ins for signs like × and µ where a stream cannot show them: text is never refused for want of a sign.

In: text, or a stream's encoding error. Out: the same in letters that the encoding has, as many columns wide where it
stands in tables.
"""

from __future__ import annotations

import codecs
import sys
import unicodedata

HANDLER = "felixlike._encoding"
"""The name under which Python's codecs know the error handler below."""

_STAND_INS = {
    "µ": "u",
    "μ": "u",
    "×": "x",
    "÷": "/",
    "·": "*",
    "–": "-",
    "—": "-",
    "−": "-",
    "─": "-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "⊕": "(+)",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
}


def showable(text: str, encoding: str | None = None) -> str:
    """The text with stand-ins for what an encoding lacks.  encoding: None for that of standard output."""
    if encoding is None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        return text.encode(encoding, HANDLER).decode(encoding, "replace")
    except LookupError:  # a stream of somebody's own may call its encoding anything
        return text


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    """Python's protocol for error handlers: what to write instead, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    if 0xDC80 <= ord(sign) <= 0xDCFF:  # a byte of a file's name that was no text
        return bytes([ord(sign) - 0xDC00]), error.start + 1
    return _STAND_INS.get(sign) or _plain(sign), error.start + 1


def _plain(sign: str) -> str:
    """A letter without its accents; the code of any other sign."""
    letters = "".join(part for part in unicodedata.normalize("NFKD", sign) if part.isascii())
    return letters or sign.encode("ascii", "backslashreplace").decode("ascii")


codecs.register_error(HANDLER, _stand_in)
