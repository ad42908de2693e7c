"""Test that files, folders and links named in the docs exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["docs/glossary.md", "docs/architecture.md", "docs/changing-a-rule.md", "CONTRIBUTING.md"]
SITE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))

PLACES = [ROOT, *(place for place in (ROOT / "felixlike", *(ROOT / "felixlike").rglob("*")) if place.is_dir())]
"""Folders from which a page can name a path: the repository, the package and its subpackages."""


def _named(text: str) -> set[str]:
    """Return the paths in a page that contain a folder."""
    return set(re.findall(r"`([\w./-]+/[\w./-]*)`", text))


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_a_page_exist(page: str) -> None:
    named = _named((ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 5
    assert [path for path in sorted(named) if not any((place / path).exists() for place in PLACES)] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *SITE])
def test_linked_pages_exist(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_every_page_is_on_the_site() -> None:
    placed = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    listed = set(re.findall(r"\]\(([\w.]+\.md)\)", (ROOT / "docs/results/index.md").read_text(encoding="utf-8")))
    assert placed | {f"results/{name}" for name in listed} == {page.removeprefix("docs/") for page in SITE}


def test_names_in_the_reference_exist() -> None:
    from importlib import import_module

    names = [n for page in SITE for n in re.findall(r"^::: ([\w.]+)$", (ROOT / page).read_text(), re.MULTILINE)]
    assert len(names) > 30
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name
