"""The names that an engine's plug-in and the README import from the client."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import eviction_client

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_there_and_is_what_its_home_defines() -> None:
    names = eviction_client.__all__
    assert names == sorted(names) and len(set(names)) == len(names)
    for name in names:
        found = getattr(eviction_client, name)
        home = sys.modules.get(getattr(found, "__module__", ""))
        assert home is not None and getattr(home, name) is found
    assert set(names) <= set(dir(eviction_client))


def test_a_process_that_only_orders_blocks_loads_neither_grpc_nor_redis_nor_settings() -> None:
    probe = (
        "import sys; from eviction_client import Block, FreeQueue, values\n"
        "print(*({'grpc', 'redis', 'pydantic', 'prometheus_client'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.strip() == ""


@pytest.mark.parametrize("file", ["docs/how-to/use-from-python.md", "Dockerfile"])
def test_an_example_imports_no_deep_module(file: str) -> None:
    """The contract's stubs, lpc.v1, are no deep module: they are what other languages generate for themselves."""
    text = (ROOT / file).read_text()
    assert re.findall(r"\b(?:from|import) ((?:eviction_client|predictor_service|lpc(?!\.v1))\.\S+)", text) == []
    imported = re.findall(r"from eviction_client import ([\w, ]+)", text)
    assert imported
    assert {name.strip() for names in imported for name in names.split(",")} <= set(eviction_client.__all__)
