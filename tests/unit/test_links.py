"""Links between the pages lead somewhere, to the heading too, and the architecture page names files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The headings' names, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def spelt(pattern: str) -> list[str]:
    """`a/{b,c}.py` as a/b.py and a/c.py."""
    found = re.fullmatch(r"(.*)\{([^{}]*)\}(.*)", pattern)
    return [found[1] + one + found[3] for one in found[2].split(",")] if found else [pattern]


def test_every_path_on_the_architecture_page_exists() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    named = [path for pattern in re.findall(r"`((?:[\w{},.]+/)[\w{},./]*)`", text) for path in spelt(pattern)]
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_package_is_on_the_architecture_page() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    packages = ("lpc", "lpc_apps", "predictor_service", "eviction_client", "response_cache", "lpc_cli", "testing", "benchmarks")
    inner = {f"{file.parent.relative_to(ROOT)}/" for package in packages for file in (ROOT / package).glob("*/__init__.py")}
    assert len(inner) > 15
    assert {package for package in inner if f"`{package}" not in text} == set()


def test_every_page_is_in_the_sites_navigation() -> None:
    """`make docs` checks the rest, where MkDocs is installed."""
    named = re.findall(r"(?m)^ +- (?:\w+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text())
    assert sorted(named) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md"))
