"""The description that a package index shows has no link that is dead there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import hatch_build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def targets(text: str) -> set[str]:
    return set(re.findall(r"\]\(([^)\s]+)\)", text))


def test_links_lead_into_the_repository_if_it_is_named() -> None:
    found = targets(hatch_build.described(README, "https://example.org/lpc"))
    assert {"https://example.org/lpc/blob/main/SECURITY.md", "https://example.org/lpc/blob/main/docs/index.md"} <= found
    assert all(link.startswith("https://") for link in found)


def test_the_hook_sets_description_and_addresses() -> None:
    metadata: dict[str, Any] = {}
    hatch_build.Description(str(ROOT), {"repository": "https://example.org/lpc"}).update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown" and "https://example.org" in metadata["readme"]["text"]
    assert set(metadata["urls"]) == {"Repository", "Documentation", "Changelog", "Security"}
    assert set(PROJECT["dynamic"]) == set(metadata)
