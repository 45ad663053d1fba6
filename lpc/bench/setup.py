"""What benchmarks share: real conversations as requests, a sidecar in a process of its own, percentiles."""

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np

from lpc.errors import LpcError
from lpc.model.conversation import UserTurns
from lpc.training.export import real_conversations
from lpc.v1 import predictor_pb2 as pb


class BenchmarkError(LpcError):
    """A benchmark cannot run. The message says why and what to do."""


def conversations(count: int, rounds: int) -> list[list[UserTurns]]:
    """Return the user turns of ``count`` real ShareGPT conversations for each round, in another order each time."""
    turns = real_conversations(count, window=5)
    return [random.Random(seed).sample(turns, count) for seed in range(rounds)]


def request(turns: UserTurns) -> pb.Conversation:
    """Return the chat that has just these user turns."""
    messages = [pb.ChatMessage(role="user", content=prompt) for prompt in turns.prompts]
    return pb.Conversation(chat=pb.ChatMessages(messages=messages), turn_count=turns.turn_count)


@contextlib.contextmanager
def sidecar(module: Sequence[str], **settings: str) -> Iterator[str]:
    """Run a sidecar (``python -m module...``) in a process of its own; yield its address.

    Raises:
        BenchmarkError: it does not start.
    """
    env = {**os.environ, "LPC_PORT": "0", "LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "", "LPC_LOG_FORMAT": "text", **settings}
    with subprocess.Popen([sys.executable, "-m", *module], stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "listening on " in line:
                break
        else:
            raise BenchmarkError(f"the sidecar did not start: {lines[-1].strip() if lines else 'no message'}")
        try:
            yield line.rsplit("listening on ", 1)[1].split(",")[0].strip()
        finally:
            process.terminate()
            process.wait(30)


def percentile(values: Sequence[float], q: float) -> float:
    """Return a percentile (0 to 100)."""
    return float(np.percentile(np.asarray(values), q))


def version_folder(models: Path, model: str) -> Path:
    """Return the newest version folder of a model. Raises BenchmarkError when there is none."""
    folders = sorted((models / model).glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    if not folders:
        raise BenchmarkError(f"no model in {models / model}: make one with `lpc export`")
    return folders[-1].parent


CHANNEL: list[tuple[str, int]] = [("grpc.max_send_message_length", -1)]


def channel(address: str) -> grpc.Channel:
    """Return a channel without a limit on what it sends."""
    return grpc.insecure_channel(address, CHANNEL)
