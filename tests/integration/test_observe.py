"""`lpc observe` as a command. tests/engine/test_observer.py has the events of a real engine."""

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from typer.testing import CliRunner

from lpc_apps.commands.cli import app


def stored(at: float, first: int, count: int, parent: int | None = None) -> bytes:
    """A batch in which blocks of four tokens were stored, as vLLM packs it."""
    blocks = list(range(first, first + count))
    tokens = [token for block in blocks for token in range(4 * block, 4 * block + 4)]
    event = {"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": parent, "token_ids": tokens, "block_size": 4}
    return msgspec.msgpack.encode([at, [{**event, "lora_id": None, "medium": "GPU", "lora_name": None}], 0])


def lpc(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["observe", *map(str, arguments)])


def test_an_engine_is_observed_until_the_time_is_over(tmp_path: Path) -> None:
    batches = [
        stored(100.0, 1, 6),
        stored(100.5, 7, 1, 6),
        stored(101.0, 8, 1, 7),
        stored(110.0, 20, 4, 6),
        stored(120.0, 40, 3),
    ]
    over = threading.Event()

    def publish() -> None:
        context = zmq.Context()
        publisher = context.socket(zmq.PUB)
        publisher.bind(f"ipc://{tmp_path}/events")
        over.wait(1.0)
        for number, batch in enumerate(batches):
            publisher.send_multipart((b"", number.to_bytes(8, "big"), batch))
        over.wait(60.0)
        context.destroy(linger=0)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        found = lpc("--kv-events", f"ipc://{tmp_path}/events", "--blocks", 100, "--minutes", 0.1, "--json")
    finally:
        over.set()
        thread.join()
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    assert figures["requests"] == 3 and figures["lost_messages"] == 0
    tokens = {source: row["tokens"] for source, row in figures["by_source"].items()}
    # The first blocks of the second request are those of the first one's prompt.
    assert (tokens["cached"], tokens["new"], tokens["short"]) == (24, 4 * (6 + 4 + 3), 3)
    assert "requests; gain over LRU" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--kv-events", "nowhere"), 2, "either --blocks"),
        (("--kv-events", "nowhere", "--blocks", 10), 1, "tcp://host:5557"),
        (("--kv-events", "ipc:///tmp/nobody", "--blocks", 10, "--minutes", 0.01), 1, "no event"),
        (("--kv-events", "ipc:///tmp/nobody", "--engine", "http://127.0.0.1:1"), 1, "refused"),
    ],
)
def test_what_cannot_be_observed_is_one_clear_line(arguments: tuple[object, ...], code: int, said: str) -> None:
    found = lpc(*arguments)
    assert found.exit_code == code
    assert said in found.stderr.splitlines()[-1]
