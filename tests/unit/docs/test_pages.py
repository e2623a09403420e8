"""Every page's links lead somewhere, and every page is found from the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def links_of(page: Path) -> Iterator[tuple[Path, str]]:
    """Page and anchor of each link within the repository."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        yield (page.parent / target).resolve() if target else page, anchor


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, anchor in links_of(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors_of(target), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_named_by_a_page_are_there(page: Path) -> None:
    named = re.findall(r"`((?:docs|tests|deploy|config|scripts|tiersidecar|benchmarks)/[\w./-]+)`", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_found_from_the_readme() -> None:
    found, to_look_at = set[Path](), [ROOT / "README.md"]
    while to_look_at:
        page = to_look_at.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        to_look_at += [target for target, _ in links_of(page)]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in found] == []


def test_design_pages_are_numbered_and_in_their_index() -> None:
    pages = sorted((ROOT / "docs" / "design").glob("0*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        assert page.read_text().startswith(f"# {page.name[:4]} "), page.name
        assert f"]({page.name})" in page.with_name("README.md").read_text()
