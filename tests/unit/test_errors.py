"""The trees of errors that the files draw are those that exist."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import eviction_client.errors
import predictor_service.errors
from lpc import errors
from lpc.errors import LpcError

ROOT = Path(__file__).parents[2]
PACKAGES = ("lpc", "predictor_service", "eviction_client")
DRAWN = re.compile(r"^[ │]*[├└]── (\w+) +([\w.]*)", re.MULTILINE)


def drawn(module: object) -> list[str]:
    return [name for name, _ in DRAWN.findall(module.__doc__ or "")]


ELSEWHERE = ("vllm", "sglang", "lmcache", "fastapi")
"""Packages of engines, in environments of their own."""


@pytest.fixture(scope="module")
def existing() -> dict[str, type[LpcError]]:
    """Every kind of LpcError in modules that this environment can import (engines have their own), by its name."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if module.name == "lpc.__main__":
                continue
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                assert error.name is not None and error.name.partition(".")[0] in ELSEWHERE, module.name
    found: dict[str, type[LpcError]] = {}
    waiting = [LpcError]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind.__module__.partition(".")[0] in PACKAGES:
                found[kind.__name__] = kind
                waiting.append(kind)
    return found


def test_every_error_is_drawn_once_and_every_drawn_one_exists(existing: dict[str, type[LpcError]]) -> None:
    everywhere = {name for module in (errors, predictor_service.errors, eviction_client.errors) for name in drawn(module)}
    assert everywhere == set(existing)


def test_the_tree_says_where_each_error_is_defined(existing: dict[str, type[LpcError]]) -> None:
    for name, place in DRAWN.findall(errors.__doc__ or ""):
        if "." in place:
            assert existing[name].__module__ == place, name
