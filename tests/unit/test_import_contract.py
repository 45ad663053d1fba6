"""The import contract of pyproject.toml notices what it forbids. That the packages keep it, `make lint` checks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("lpc", "lpc_apps", "predictor_service", "eviction_client", "response_cache", "lpc_cli", "testing", "benchmarks")
PLANTED = [
    ("lpc/wire/terminal.py", "import lpc_cli.cli", "lpc.wire is not allowed to import lpc_cli"),
    ("lpc/wire/terminal.py", "import lpc.progress", "lpc.wire is not allowed to import lpc.progress"),
    ("lpc/model/arrivals.py", "import predictor_service.server", "lpc.model is not allowed to import predictor_service"),
    (
        "lpc_apps/simulator/cache.py",
        "    from benchmarks import queue",
        "lpc_apps.simulator is not allowed to import benchmarks",
    ),
    (
        "lpc_apps/training/quality.py",
        "import predictor_service.constants",
        "lpc_apps.training is not allowed to import predictor_service",
    ),
    ("predictor_service/constants.py", "import eviction_client", "predictor_service is not allowed to import eviction_client"),
    (
        "eviction_client/stores/claims.py",
        "import predictor_service",
        "eviction_client is not allowed to import predictor_service",
    ),
    ("eviction_client/stores/claims.py", "import numpy", "eviction_client is not allowed to import numpy"),
    ("lpc/model/features.py", "import grpc", "lpc.model is not allowed to import grpc"),
    ("response_cache/keys/canonical.py", "import lpc.cache", "response_cache.keys is not allowed to import lpc.cache"),
    (
        "predictor_service/labels/names.py",
        "import response_cache.store.entry",
        "predictor_service is not allowed to import response_cache",
    ),
    (
        "lpc_apps/lmcache/gate.py",
        "import response_cache.gateway.exchange",
        "lpc_apps.lmcache is not allowed to import response_cache",
    ),
    ("response_cache/client.py", "import response_cache.gateway.server", "response_cache.client is not allowed to import"),
    ("lpc_apps/training/head.py", "import lpc_apps.training.train", "No cycles are allowed in lpc_apps.training"),
]


def test_forbidden_imports_are_caught(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line, _ in PLANTED:
        with (tmp_path / file).open("a") as source:
            source.write(f"\n\ndef late() -> None:\n{line}\n" if line.startswith(" ") else f"\n{line}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert [objection for _, _, objection in PLANTED if objection not in result.stdout] == []
