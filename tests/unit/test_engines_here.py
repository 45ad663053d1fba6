"""`lpc doctor` says of each engine and tier what is installed, and whether our part works in it."""

import sys
from pathlib import Path

import pytest

from lpc_cli.engines import Finding, examine_engines
from tests.support import TIERS


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packages are installed; real ones of the engines are not seen."""
    for name in ("vllm", "lmcache", "sglang"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(path for path in sys.path if "site-packages" not in path)])
    return tmp_path


def install(site: Path, name: str, release: str) -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text("raise RuntimeError('nobody imports an engine')")
    info = site / f"{name.replace('-', '_')}-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")


def rows() -> dict[str, Finding]:
    return {row.check.removeprefix("engine "): row for row in examine_engines()}


def test_every_tier_of_the_support_table_that_is_an_engine_has_its_row(site: Path) -> None:
    for name in ("vllm", "lmcache", "sglang"):
        install(site, name, "0.1")
    assert set(rows()) == {f"{engine}, {tier}" for engine, tier in TIERS if engine != "any, by gRPC"}


def test_engines_that_are_not_installed_have_one_row(site: Path) -> None:
    advice = "to check an engine, run this in its environment"
    assert list(examine_engines()) == [Finding("engines", "ok", "none is installed here: vLLM, LMCache, SGLang", advice)]
    install(site, "vllm", "0.32.0")
    assert set(rows()) == {"vLLM, GPU pool", "vLLM, waiting queue", "vLLM, CPU tier", "engines"}
    assert rows()["engines"] == Finding("engines", "ok", "not installed here: LMCache, SGLang")


def test_a_release_that_was_tested(site: Path) -> None:
    install(site, "vllm", "0.32.0+cpu")
    found = rows()
    assert found["vLLM, GPU pool"].found.startswith("0.32.0: supported, tested; --scheduler-cls")
    assert found["vLLM, CPU tier"].found.startswith("0.32.0: supported, tested")
    assert {row.status for row in found.values()} == {"ok"}


def test_a_release_that_nobody_has_tried_is_a_warning(site: Path) -> None:
    install(site, "vllm", "0.99.0")
    row = rows()["vLLM, GPU pool"]
    assert row.status == "warn" and "checks it at start" in row.advice and "0.32.0" in row.advice
