"""Benchmark `load` with a tiny model: each request has one end."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks import load
from testing.processes import Sidecar
from testing.requests import conversations, request
from tests.tuned import command


@pytest.mark.nightly
def test_the_loads_clients_go_on_when_their_connections_are_ended_for_their_age(tiny_models: Path, tmp_path: Path) -> None:
    (turns,) = conversations(10, 1)
    requests = itertools.cycle([request(t) for t in turns])
    with Sidecar(tmp_path, tiny_models, "tiny", command=command(connection_age_s=2.0)) as sidecar:
        load_of = load.overload(sidecar, requests, clients=3, per_second=30, seconds=7.0)
        everything, _ = asyncio.run(load_of)
    fates = Counter(sent.fate for sent in everything)
    assert fates["failed"] == fates["unanswered"] == 0
    assert any(sent.fate == "answered" and sent.at > 3.0 for sent in everything)


@pytest.mark.nightly
def test_every_request_of_the_load_comes_to_one_end(tiny_models: Path) -> None:
    with patch("benchmarks.load.WINDOW_S", 1.0):
        figures = load.run(tiny_models, "tiny", minutes=0.05, clients=8, factor=1.5, saturation_s=1.5)
    assert figures["failed"] == figures["unanswered"] == 0
    assert figures["offered"] == figures["answered"] + figures["refused"] + figures["expired"] > 0
    assert len(figures["windows"]) == 3
