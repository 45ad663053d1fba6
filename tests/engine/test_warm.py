"""`vllm serve`, restarted: what `lpc warm` sends again hits at the first request, and no salted prompt is listed."""

import json
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from lpc_apps.tiny_llama import build
from testing.processes import free_port
from tests.engine.test_serve import ROOT, VllmServer
from tests.eventually import patiently

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="`lpc warm` after a restart of `vllm serve`")
OFTEN = "You answer questions about trains. " * 12
SELDOM = "You answer questions about ships. " * 12
SALTED = "You answer questions about planes. " * 12


def ask(server: VllmServer, system: str, number: int, **body: str) -> int:
    """Return the cached tokens of a first turn."""
    answer = server.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": system}, {"role": "user", "content": f"{number}: when is the next?"}],
        max_tokens=64,
        temperature=0,
        extra_body={"ignore_eos": True, **body},
    )
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def end(server: VllmServer) -> None:
    """End a server as container engines do: SIGTERM to its first process alone."""
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(patiently())


def warm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / ".venv" / "bin" / "python", "-m", "lpc_cli", "warm", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_first_requests_after_a_restart_hit_what_was_warmed(tmp_path: Path) -> None:
    model = build(tmp_path / "tiny", weights=True)
    settings = {"LPC_STATE": str(tmp_path / "state"), "LPC_LIST_PREFIXES": "10"}
    settings["LPC_PREDICTOR_ADDRESS"] = f"127.0.0.1:{free_port()}"
    # By default vLLM kills its engine's process at once, before it can save anything.
    options = ("--enable-prompt-tokens-details", "--shutdown-timeout", "60")
    first = VllmServer(tmp_path, model, options=options, **settings)
    try:
        first.wait()
        for number in range(6):
            ask(first, OFTEN, number)
        for number in range(3):
            ask(first, SELDOM, number)
            ask(first, SALTED, number, cache_salt="of a tenant")
        assert ask(first, OFTEN, 99) > 128
        end(first)
    finally:
        first.stop()
    file = tmp_path / "state" / "prefixes-0.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    head, *lines = map(json.loads, file.read_text().splitlines())
    assert head["model"] == "tiny" and len(lines) == 2 and lines[0]["reuses"] > lines[1]["reuses"]
    again = VllmServer(tmp_path, model, options=options, **settings)
    try:
        again.wait()
        url = f"http://127.0.0.1:{again.port}"
        wrong = warm(str(file), "--engine", url, "--model", "another")
        assert wrong.returncode == 1 and "serves tiny, and not another" in wrong.stderr
        done = warm(str(file), "--engine", url, "--most", "1", "--json")
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert figures == {"sent": 1, "tokens": len(lines[0]["tokens"]), "cached_tokens": 0, "failed": 0}
        # The one that was sent hits, and the other one does not.
        assert ask(again, OFTEN, 7) == len(lines[0]["tokens"])
        assert ask(again, SELDOM, 7) < 128
        # A second run finds both in the cache.
        once_more = json.loads(warm(str(file), "--engine", url, "--rate", "100", "--json").stdout)
        assert once_more["sent"] == 2 and once_more["cached_tokens"] > 0.8 * once_more["tokens"]
        end(again)
    finally:
        again.stop()
    # The list has outlived the second run as well.
    assert len(file.read_text().splitlines()) >= 3
