"""The wire contract keeps its style and its promises (buf), and its stubs run where engines run."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUF = Path(sys.executable).with_name("buf")


def buf(*args: str, cwd: Path = ROOT / "proto") -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BUF), *args], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_contract_passes_lint() -> None:
    result = buf("lint")
    assert result.returncode == 0, result.stdout


def test_the_contract_breaks_nothing_released() -> None:
    result = buf("breaking", "--against", "released.json")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", ["lpc/v1/predictor_pb2.py", "lpc/cache/v1/response_cache_pb2.py"])
def test_the_stubs_are_of_the_protobuf_generation_that_vllm_and_lmcache_share(name: str) -> None:
    stub = (ROOT / name).read_text()
    assert "# Protobuf Python Version: 6.31." in stub


def test_the_client_loads_nothing_heavy() -> None:
    """The client lives in the engine's process: what it imports, the engine pays for."""
    probe = (
        "import sys, pkgutil, importlib, eviction_client\n"
        "for m in pkgutil.walk_packages(eviction_client.__path__, 'eviction_client.'):\n"
        "    if not m.name.startswith('eviction_client.engines.'): importlib.import_module(m.name)\n"
        "print({'numpy', 'torch', 'transformers', 'predictor_service', 'onnxruntime'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "set()\n"
