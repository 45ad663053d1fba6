"""The wire contract keeps its style and its promises (buf), and its stubs run where engines run."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from lpc.v1 import predictor_pb2 as pb
from predictor_service.requests.parser import ids_of

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


IDS = (1, 2, 3, 2**32 - 1)
PACKED = struct.pack("<4I", *IDS)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x0a\x10" + PACKED,
        b"".join(b"\x0d" + PACKED[at : at + 4] for at in range(0, 16, 4)),
        b"\x0a\x08" + PACKED[:8] + b"\x12\x01m" + b"\x0a\x08" + PACKED[8:],
        b"\x0d" + PACKED[:4] + b"\x0a\x0c" + PACKED[4:] + b"\x22\x01x",
    ],
    ids=["packed", "one by one", "in two parts", "mixed, with an unknown field"],
)
def test_token_ids_are_read_in_every_encoding_that_a_client_may_send(sent: bytes) -> None:
    """Why the field is not `bytes`, which packed ids look like: a parser of bytes takes the last part, or nothing."""
    assert tuple(ids_of(pb.TokenIds.FromString(sent + b"\x1a\x01d"))) == IDS


def test_the_client_loads_nothing_heavy() -> None:
    """The client lives in the engine's process: what it imports, the engine pays for."""
    probe = (
        "import sys, pkgutil, importlib, eviction_client\n"
        "for m in pkgutil.walk_packages(eviction_client.__path__, 'eviction_client.'):\n"
        "    if not m.name.startswith('eviction_client.engines.'): importlib.import_module(m.name)\n"
        "print({'numpy', 'torch', 'transformers', 'predictor_service', 'onnxruntime'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "set()\n"
