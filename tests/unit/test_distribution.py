"""What pages and programs advise to install exists: one constant says from where."""

import re
import tomllib

import pytest

from lpc.distribution import NAME, SOURCE, commands, from_source, install
from tests.only import ROOT

SUFFIXES = {".md", ".yaml", ".txt", ".tpl"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Dockerfile", "docker-compose.yml")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(
        path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix in {".md", ".yaml", ".txt", ".tpl"}
    ),
]
PROGRAMS = [
    path
    for folder in (
        "lpc",
        "lpc_apps",
        "predictor_service",
        "eviction_client",
        "response_cache",
        "lpc_cli",
        "testing",
        "benchmarks",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != ROOT / "lpc/distribution.py"
]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_page_installs_from_where_the_constant_says() -> None:
    found = [command for page in PAGES for command in commands(page.read_text())]
    assert len(found) >= 15
    assert [command for command in found if from_source(command) != command] == []
    if SOURCE != NAME:
        assert [page for page in PAGES if f"{NAME}[" in page.read_text()] == []


def test_every_page_that_installs_from_a_checkout_says_so() -> None:
    if SOURCE != NAME:
        pages = [page for page in PAGES if page.suffix == ".md" and commands(page.read_text())]
        assert [page for page in pages if "checkout" not in page.read_text() and "check out" not in page.read_text()] == []


def test_every_extra_that_a_page_or_a_program_names_exists() -> None:
    named = re.compile(r"(?:pip install (?:--[a-z-]+ )*'\S+\[|install\(\"|install\(')([a-z,]+)[\]\"']")
    found = {extra for path in (*PAGES, *PROGRAMS) for names in named.findall(path.read_text()) for extra in names.split(",")}
    assert {"sim", "server", "vllm", "cluster", "tls", "gpu"} <= found <= set(EXTRAS)


def test_no_program_advises_a_source_of_its_own() -> None:
    own = re.compile(rf"{NAME}\[[a-z,]+\](?! @)")
    assert [path for path in PROGRAMS if commands(path.read_text()) or own.search(path.read_text())] == []


def test_a_release_changes_one_constant_and_all_commands_follow() -> None:
    page = "pip install '.[sim]' && lpc, `pip install --no-deps .` (pip install '.[a,b]'), pip install vllm"
    there = from_source(page, NAME)
    assert there == page.replace("'.[", f"'{NAME}[").replace("deps .`", f"deps {NAME}`")
    assert from_source(there, ".") == page
    for path in PAGES:
        text = path.read_text()
        assert from_source(from_source(text, NAME)) == text


@pytest.mark.parametrize(
    ("source", "advice"),
    [(".", f"pip install '.[sim]' in a checkout of {NAME}"), (NAME, f"pip install '{NAME}[sim]'")],
)
def test_a_program_advises_what_works(source: str, advice: str) -> None:
    assert install("sim", source=source) == advice
    assert install(options="--no-deps ", source=source).startswith(f"pip install --no-deps {source}")
