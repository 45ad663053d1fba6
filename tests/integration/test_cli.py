"""The `lpc` command as a user runs it: a process, its output, its exit code."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lpc.bench.processes import free_port

LPC = [sys.executable, "-m", "lpc"]


def lpc(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*LPC, *args], input=stdin, capture_output=True, check=False, timeout=90, env={**os.environ, **env})


@pytest.fixture(scope="module")
def served(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    sock = tmp_path_factory.mktemp("run") / "lpc.sock"
    flags = [
        "--models",
        str(tiny_models),
        "--model",
        "tiny",
        "--port",
        str(port),
        "--unix-socket",
        str(sock),
        "--metrics-port",
        "0",
    ]
    with subprocess.Popen([*LPC, "serve", *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                break
        # What it logs later must not fill the pipe.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, f"127.0.0.1:{port}"
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(20)


CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "thank you"}]


@pytest.mark.parametrize(
    "data",
    [json.dumps(CHAT), json.dumps({"messages": CHAT}), json.dumps({"messages": CHAT}) + "\n" + json.dumps(CHAT), "hello world"],
    ids=["list", "object", "lines", "text"],
)
def test_predict_prints_a_probability_for_each_conversation(served: tuple[object, str], data: str) -> None:
    result = lpc("predict", "--address", served[1], stdin=data.encode())
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(b"v1") == max(1, data.count('"assistant"'))


def test_predict_reads_a_file(served: tuple[object, str], tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(CHAT))
    assert lpc("predict", str(tmp_path / "chat.json"), "--address", served[1]).returncode == 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"[", "neither JSON"),
        (b"{}", "no list of messages"),
        (b"[]", "has no messages"),
        (b'[{"content": "x"}]', "message 0 has no role"),
        (b'[{"role": "user", "content": 3}]', "content of message 0 is not text"),
        (b'{"messages": [{"role": "user", "content": "x"}], "turn_count": NaN}', "turn_count must be a whole number"),
        (b'{"messages": [{"role": "user", "content": "x"}], "turn_count": -1}', "turn_count must be a whole number"),
        (b'{"messages": [{"role": "user", "content": "x"}], "turn_count": true}', "turn_count must be a whole number"),
        (b'[{"role": "system", "content": "x"}]', "INVALID_ARGUMENT: none of the 1 messages"),
    ],
)
def test_predict_says_what_is_wrong_with_its_input(served: tuple[object, str], data: bytes, why: str) -> None:
    result = lpc("predict", "--address", served[1], stdin=data)
    assert result.returncode == 2
    assert why in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()


def test_predict_without_a_sidecar_says_how_to_start_one() -> None:
    result = lpc("predict", "--address", f"127.0.0.1:{free_port()}", stdin=b"hello")
    assert result.returncode == 2
    assert b"start one with `lpc serve`" in result.stderr


def test_a_second_sidecar_on_the_same_port_is_refused(served: tuple[object, str], tiny_models: Path) -> None:
    port = served[1].rpartition(":")[2]
    result = lpc(
        "serve", "--models", str(tiny_models), "--model", "tiny", "--port", port, LPC_UNIX_SOCKET="", LPC_METRICS_PORT="0"
    )
    assert result.returncode == 2
    assert b"the port is taken" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_0(tiny_models: Path, number: signal.Signals) -> None:
    env = {**os.environ, "LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "", "LPC_PORT": "0"}
    flags = ["--models", str(tiny_models), "--model", "tiny"]
    with subprocess.Popen([*LPC, "serve", *flags], stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                process.send_signal(number)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"LPC_PORT": "seventy"}, "port: Input should be a valid integer"),
        ({"LPC_PORT": "70000"}, "port: Input should be less than or equal to 65535"),
        ({"LPC_PROVIDER": "tpu"}, "provider: Input should be 'auto', 'cpu' or 'cuda'"),
        ({"LPC_SERVED_MODELS": "{"}, "settings:"),
        ({"LPC_MODELS": "/nowhere"}, "no model in /nowhere/e5-small: make one with `lpc export`"),
        ({"LPC_PROVIDER": "cuda"}, "lpc: "),
    ],
)
def test_serve_says_what_is_wrong_with_its_settings(tmp_path: Path, env: dict[str, str], why: str) -> None:
    defaults = {"LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "", "LPC_PORT": "0", "LPC_MODELS": str(tmp_path)}
    result = lpc("serve", **{**defaults, **env})
    assert result.returncode == 2
    assert why in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "lpc.toml").write_text('models = "/from/the/file"\nport = 0\n')
    result = lpc("serve", "--config", str(tmp_path / "lpc.toml"), LPC_UNIX_SOCKET="", LPC_METRICS_PORT="")
    assert b"no model in /from/the/file/e5-small" in result.stderr
    (tmp_path / "lpc.toml").write_text("prot = 1\n")
    result = lpc("serve", "--config", str(tmp_path / "lpc.toml"))
    assert result.returncode == 2
    assert b"prot: Extra inputs are not permitted" in result.stderr


def test_train_without_embeddings_says_what_to_run_first(tmp_path: Path) -> None:
    result = lpc("train", "--embeddings", str(tmp_path))
    assert result.returncode == 2
    assert b"make them with `lpc embed" in result.stderr


def write_log(path: Path, conversations: int = 120, gap: float = 20.0) -> Path:
    """Write a gateway's log: conversations start each 10 s, and two of three have a second turn ``gap`` seconds later."""
    rows = []
    for i in range(conversations):
        for turn in range(1 + (i % 3 > 0)):
            content = [{"role": "user", "content": f"question {i}"}] * (turn + 1)
            rows.append({"time": 10.0 * i + turn * (gap + i % 7), "messages": content, "session_id": str(i)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_train_time_fits_saves_and_judges(tmp_path: Path) -> None:
    log, out, figures = write_log(tmp_path / "log.jsonl", 400), tmp_path / "new" / "think_time.json", tmp_path / "f.json"
    result = lpc("train-time", "--trace", str(log), "--format", "chat", "--out", str(out), "--json", str(figures), "--evaluate")
    assert result.returncode == 0, result.stderr
    from lpc.model.think_time import ThinkTime

    assert ThinkTime.load(out).categories == ("chat",)
    said = json.loads(figures.read_text())
    assert said["file"] == str(out)
    assert (said["requests"], said["model"]["turns"]) == (666, 666)
    first = said["expected"][0]
    assert (first["class"], first["turn"]) == ("chat", 1)
    assert 0.5 < first["p_continue"] < 0.8
    assert first["median_s"] == pytest.approx(23, abs=2)
    assert 15 < first["p10_s"] < first["median_s"] < first["p90_s"] < 40
    assert said["evaluation"]["turns"] == pytest.approx(1200 / 10 * 5 / 3, abs=3)  # the last 20 minutes
    assert said["evaluation"]["gain"]["exponential"][0] > 0.5
    shown = result.stdout.decode()
    assert "666 turns" in shown
    assert "exponential by class" in shown
    assert "returns within s" in shown


def test_train_time_without_evaluate_uses_all_and_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for out in files:
        result = lpc("train-time", "--trace", str(log), "--format", "chat", "--out", str(out))
        assert result.returncode == 0, result.stderr
        assert b"held out" not in result.stdout
    assert files[0].read_bytes() == files[1].read_bytes()
    assert lpc("train-time", "--trace", str(log), "--format", "chat", "--out", str(files[1]), "--until", "900").returncode == 0
    assert json.loads(files[1].read_text())["metadata"]["until_s"] == 900


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--format", "sglang"], "unknown trace format 'sglang': use one of mooncake, qwen, chat"),
        (["--format", "qwen"], "has no request of this format"),
        (["--format", "chat", "--trace", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (["--format", "chat", "--until", "60"], "at least 100 and 30 are needed: give a longer log"),
        (["--format", "chat", "--until", "-1"], "at least 100 and 30 are needed: give a longer log"),
        (["--format", "chat", "--until", "5000", "--evaluate"], "from second 5000 has 0 turns"),
        (["--format", "chat", "--evaluate"], "at least 100 and 30 are needed: give a longer log"),
        (["--format", "chat", "--out", "/"], "/ is a folder: name the file to write"),
        (["--format", "chat", "--out", "/proc/none/think_time.json"], "cannot write /proc/none/think_time.json"),
    ],
)
def test_train_time_says_what_is_wrong_and_leaves_no_file(tmp_path: Path, flags: list[str], why: str) -> None:
    log, out = write_log(tmp_path / "log.jsonl"), tmp_path / "think_time.json"
    result = lpc("train-time", "--trace", str(log), "--out", str(out), *flags)
    assert result.returncode == 2
    assert why in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()
    assert "question" not in result.stderr.decode() + result.stdout.decode()
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_export_of_missing_think_times_says_what_to_run_first(tmp_path: Path) -> None:
    result = lpc("export", "--models", str(tmp_path / "models"), "--think-time", str(tmp_path / "none.json"))
    assert result.returncode == 2
    assert b"fit one with `lpc train-time`" in result.stderr
    assert not (tmp_path / "models").exists()


def test_export_of_a_missing_head_says_what_to_run_first(tmp_path: Path) -> None:
    result = lpc("export", "--models", str(tmp_path), "--head", str(tmp_path / "none.safetensors"))
    assert result.returncode == 2
    assert b"train one with `lpc train`" in result.stderr
