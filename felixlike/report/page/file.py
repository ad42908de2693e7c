"""Write a page to a file atomically."""

from __future__ import annotations

from pathlib import Path

from felixlike._util.atomic_files import written_whole
from felixlike.report.page.content import Page
from felixlike.report.page.render import page_text


def write_page(page: Page, path: str | Path) -> None:
    """Write a page to a file.

    Args:
        page: Content of the page.
        path: File to write.

    Raises:
        OutputNotWritable: The file cannot be written.
    """
    text = page_text(page).encode()
    with written_whole(path) as file:
        file.write(text)
