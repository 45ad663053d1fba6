"""The bodies that vLLM's request logger writes at DEBUG are read, in each of its layouts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lpc_apps.logs.log import open_log

WRITE = """
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging

configure_logging(LoggingConfig(log_level="DEBUG", formatter={formatter!r}))
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.utils.request_logger import RequestLogger

for number in range(4):
    text = {text!r} * 9
    request = ChatCompletionRequest(model="m", messages=[{{"role": "user", "content": text}}], user="u")
    RequestLogger(max_log_len=None if number else 60).log_request_body(request)
    RequestLogger(max_log_len=None).log_inputs("chatcmpl-1", text, [1, 2], None, None, None)
"""
TEXT = 'Gr\u00fc\u00dfe\nline "two" JSON body: { \u2028 '


@pytest.mark.parametrize(("formatter", "colour"), [("text", "1"), ("json", "0")])
def test_bodies_of_vllm_s_request_logger_are_read(formatter: str, colour: str, tmp_path: Path) -> None:
    environment = {**os.environ, "VLLM_LOGGING_COLOR": colour, "VLLM_LOGGING_STREAM": "ext://sys.stdout"}
    run = subprocess.run(
        [sys.executable, "-c", WRITE.format(formatter=formatter, text=TEXT)], env=environment, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    path = tmp_path / "vllm.log"
    path.write_bytes(run.stdout)
    with open_log(path) as log:
        trace = log.trace()
        assert log.format == "vllm"
    assert (len(trace.requests), trace.skipped.counts["the body is cut off: see --max-log-len"]) == (3, 1)
    assert len({request.blocks for request in trace.requests}) == 1
    assert {request.user for request in trace.requests} == {"u"}
