"""A page as a file, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from felixlike._util.atomic_files import written_whole
from felixlike.report.page.content import Page
from felixlike.report.page.render import page_text


def write_page(page: Page, path: str | Path) -> None:
    """Write it. Raises OutputNotWritable."""
    text = page_text(page).encode()
    with written_whole(path) as file:
        file.write(text)
