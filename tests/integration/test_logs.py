"""`lpc serve` writes one JSON object per line, whatever writes it; text where asked for."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import grpc
import pytest

from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire import log_lines
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import patiently
from tests.integration.test_server import chat, one


def said(models: Path, served: Path, **settings: str) -> list[str]:
    """Run a sidecar, ask it in two ways, end it; return what it wrote to standard error."""
    env = {"LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "0", "LPC_PORT": "0", "LPC_MODELS": str(models), "LPC_MODEL": "tiny"}
    env |= {"LPC_SERVED_MODELS": json.dumps({"m": str(served)}), **settings}
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", "lpc_cli", "serve"], stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                break
        assert found
        with grpc.insecure_channel(found[1]) as channel:
            stub = rpc.ContinuationPredictorStub(channel)
            ids = tokenizer_of(STYLES["chatml"])("<|im_start|>user\nhello<|im_end|>\n", add_special_tokens=False)["input_ids"]
            for conversation in (chat("hello"), pb.Conversation(tokens=pb.TokenIds(ids=ids, served_model="m"))):
                assert stub.Predict(one(conversation), timeout=patiently()).prediction.probability > 0
        process.send_signal(signal.SIGTERM)
        lines += process.stderr.readlines()
        assert process.wait(patiently()) == 0
    return lines


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    tokenizer_of(STYLES["chatml"]).save_pretrained(folder)
    return folder


def test_every_line_is_a_json_object_with_the_same_fields(tiny_models: Path, served: Path) -> None:
    lines = [json.loads(line) for line in said(tiny_models, served, LPC_LOG_LEVEL="DEBUG")]
    assert {tuple(line) for line in lines} == {("time", "level", "logger", "message")}
    assert abs(datetime.fromisoformat(lines[0]["time"]).timestamp() - time.time()) < 300
    messages = [
        line["message"] for line in lines if line["logger"] in ("predictor_service.serving", "predictor_service.process")
    ]
    assert messages[0] == "serving tiny v1 (fp32) on cpu"
    assert messages[-1] == "stopped"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    before, level = logger.handlers[:], logger.level
    # A command that another test ran in this process may have taken warnings into the log.
    logging.captureWarnings(False)
    yield logger
    logger.handlers[:] = before
    logger.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.filterwarnings("default")
def test_tracebacks_and_warnings_stay_one_line(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("INFO", "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("a").exception("it\nfailed: %s", "ü")
    warnings.warn("old", stacklevel=1)
    failed, warned = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (failed["level"], failed["logger"], failed["message"]) == ("ERROR", "a", "it\nfailed: ü")
    assert failed["exception"].startswith("Traceback") and failed["exception"].endswith("ValueError: two\nlines")
    assert warned["logger"] == "py.warnings" and "old" in warned["message"]
