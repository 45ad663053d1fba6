"""The `lpc` command: its output and its exit code; a process where signals, a terminal or a shell take part."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from testing.processes import free_port
from tests.command import lpc
from tests.eventually import patiently, until

LPC = [sys.executable, "-m", "lpc_cli"]


@pytest.fixture(scope="module")
def served(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    sock = tmp_path_factory.mktemp("run") / "lpc.sock"
    flags = ["--models", str(tiny_models), "--model", "tiny", "--port", str(port), "--unix-socket", str(sock)]
    flags += ["--metrics-port", "0"]
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
            process.wait(patiently())


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
        (b"{}", "expected a list of messages"),
        (b'[{"content": "x"}]', "message 0 has no role"),
        (b'{"messages": [{"role": "user", "content": "x"}], "turn_count": NaN}', "turn_count must be a whole number"),
        (b'[{"role": "wizard", "content": "x"}]', "INVALID_ARGUMENT: message 0 has an unknown role"),
    ],
)
def test_predict_says_what_is_wrong_with_its_input(served: tuple[object, str], data: bytes, why: str) -> None:
    result = lpc("predict", "--address", served[1], stdin=data)
    assert result.returncode == 1
    assert why in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()


def test_predict_without_a_sidecar_says_how_to_start_one() -> None:
    result = lpc("predict", "--address", f"127.0.0.1:{free_port()}", stdin=b"hello")
    assert result.returncode == 1
    assert b"start one with `lpc serve`" in result.stderr
    assert result.stdout == b"", "no head of a table without rows"


def test_a_second_sidecar_on_the_same_port_is_refused(served: tuple[object, str], tiny_models: Path) -> None:
    port = served[1].rpartition(":")[2]
    result = lpc(
        "serve", "--models", str(tiny_models), "--model", "tiny", "--port", port, LPC_UNIX_SOCKET="", LPC_METRICS_PORT="0"
    )
    assert result.returncode == 1
    assert b"(Address already in use): choose another port" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_0(tiny_models: Path, number: signal.Signals) -> None:
    env = {**os.environ, "LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "", "LPC_PORT": "0"}
    flags = ["--models", str(tiny_models), "--model", "tiny"]
    with subprocess.Popen([*LPC, "serve", *flags], stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                process.send_signal(number)
        assert process.wait(patiently()) == 0


@pytest.mark.parametrize("model", ["tiny", "missing"])
def test_a_sidecar_leaves_nothing_in_the_folder_for_temporary_files(tiny_models: Path, tmp_path: Path, model: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    env |= {"TMPDIR": str(tmp_path), "LPC_METRICS_PORT": "", "LPC_PORT": "0"}
    flags = ["--models", str(tiny_models), "--model", model]
    with subprocess.Popen([*LPC, "serve", *flags], stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                assert [path.name for path in tmp_path.glob("*/*")] == ["predictor.sock"]
                process.send_signal(signal.SIGTERM)
        assert process.wait(patiently()) == (0 if model == "tiny" else 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"LPC_PORT": "seventy"}, "port: Input should be a valid integer"),
        ({"LPC_SERVED_MODELS": "{"}, """settings: give LPC_SERVED_MODELS='{"qwen3": """),
        ({"LPC_SERVED_MODELS": "[]"}, """should be a valid dictionary; give LPC_SERVED_MODELS='{"qwen3": """),
        ({"LPC_CACHE_SCOPES": "{"}, """settings: give LPC_CACHE_SCOPES='{"faq": """),
        (
            {"LPC_CACHE_SCOPES": '{"faq": {"kin": "faq"}}'},
            "cache_scopes.faq: kin is not a setting of a scope: did you mean kind?",
        ),
        ({"LPC_TLS_CERTIFICATE": "x"}, "settings: tls_certificate and tls_key go together"),
        ({"LPC_CONFIG": "/nowhere/lpc.toml"}, "the settings file /nowhere/lpc.toml does not exist (--config or LPC_CONFIG)"),
        ({"LPC_UNIX_SOCKET": "/proc/lpc/predictor.sock"}, "cannot create the folder /proc/lpc of the Unix socket"),
        ({"LPC_METRICS_PROT": "1"}, "LPC_METRICS_PROT is not a setting: did you mean LPC_METRICS_PORT?"),
        ({"LPC_MODELS": "/nowhere"}, "no model in /nowhere/default: make one with `lpc export`"),
        ({"LPC_PROVIDER": "cuda"}, "lpc: "),
    ],
)
def test_serve_says_what_is_wrong_with_its_settings(tmp_path: Path, env: dict[str, str], why: str) -> None:
    defaults = {"LPC_UNIX_SOCKET": "", "LPC_METRICS_PORT": "", "LPC_PORT": "0", "LPC_MODELS": str(tmp_path)}
    result = lpc("serve", **{**defaults, **env})
    assert result.returncode == (2 if "lpc: settings:" in result.stderr.decode() else 1)
    assert why in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()
    assert len(result.stderr.splitlines()) <= 2


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "lpc.toml").write_text('models = "/from/the/file"\nport = 0\n')
    result = lpc("serve", "--config", str(tmp_path / "lpc.toml"), LPC_UNIX_SOCKET="", LPC_METRICS_PORT="")
    assert b"no model in /from/the/file/default" in result.stderr
    (tmp_path / "lpc.toml").write_text("prot = 1\n")
    result = lpc("serve", "--config", str(tmp_path / "lpc.toml"))
    assert result.returncode == 2
    assert f"{tmp_path}/lpc.toml: prot is not a setting: did you mean port?" in result.stderr.decode()
    (tmp_path / "lpc.toml").write_text("port = \n")
    result = lpc("serve", LPC_CONFIG=str(tmp_path / "lpc.toml"))
    assert result.returncode == 2
    assert f"the settings file {tmp_path}/lpc.toml is not TOML: " in result.stderr.decode()


NOBODY = 65534


def test_models_that_may_not_be_read_are_not_said_to_be_missing(tmp_path: Path, tiny_models: Path) -> None:
    from lpc.errors import ArtifactError
    from lpc.model.versions import newest_first, served_folder

    root = Path(shutil.copytree(tiny_models / "tiny", tmp_path / "tiny"))

    def as_another(look: Callable[[Path], object]) -> str:
        """Return the error that somebody meets who may enter the folders above and read nothing."""
        with pytest.raises(ArtifactError) as refused:
            if os.geteuid() == 0:
                os.seteuid(NOBODY)
            try:
                look(root)
            finally:
                if os.getuid() == 0:
                    os.seteuid(0)
        return str(refused.value)

    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(folder.stat().st_mode | 0o011)
    (root / "v1/manifest.json").chmod(0)
    assert re.search(r"manifest.json cannot be read \(Permission denied\): let user \d+", as_another(served_folder))
    root.chmod(0)
    assert re.search(rf"the models in {root} cannot be read \(Permission denied\): let user \d+", as_another(newest_first))


def test_the_version_is_the_packages() -> None:
    assert lpc("--version").stdout.decode() == f"learned-prefix-cache {importlib.metadata.version('learned-prefix-cache')}\n"


@pytest.mark.parametrize("flag", ["--output", "--picture"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work_begins(tmp_path: Path, flag: str) -> None:
    for place in ("/proc/lpc/page", str(tmp_path)):
        refused = lpc("simulate", "--workload", "chat-bimodal", "--policies", "lru", "--capacity", "2%", flag, place)
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert refused.stderr.startswith(f"lpc: cannot write {place}: ".encode()), refused.stderr
    assert not list(tmp_path.iterdir())


def test_ctrl_c_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.png"
    flags = ["--workload", "batch-scan", "--policies", "lru,plugin-sidecar", "--picture", str(page)]
    # Who runs the tests may ignore Ctrl-C, and children would, too.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [*LPC, "simulate", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen) as process:
        assert process.stdout is not None and process.stderr is not None
        seen = b""
        while b"\nlru" not in seen and process.poll() is None:  # the first policy is done, the second runs
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.endswith(b"lpc: interrupted\n") and b"Traceback" not in rest
    assert not list(tmp_path.iterdir())


SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "lpc_cli.cli":
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
"""


def test_ctrl_c_while_the_commands_are_imported_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with subprocess.Popen(
        [*LPC, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, preexec_fn=listen
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=patiently())
    # A fork of this process may print a line of its gRPC before the command runs.
    assert process.returncode == 130
    assert said.endswith(b"lpc: interrupted\n") and b"Traceback" not in said


def test_signals_that_are_ignored_stay_so() -> None:
    program = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.argv = ["lpc", "--version"]
from lpc_cli.start import main
try:
    main()
finally:
    print(signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"


def running_in(session: int) -> list[str]:
    """Return the command lines of a session's processes that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = file.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append((file.parent / "cmdline").read_text())
    return found


def rest_of(process: subprocess.Popen[bytes]) -> bytes:
    """Return what the first process of a session writes to standard error until it ends. End the session."""
    try:
        return process.communicate(timeout=patiently())[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


@pytest.mark.parametrize(
    ("to", "late"), [(os.kill, True), (os.killpg, True), (os.killpg, False)], ids=["alone", "with its workers", "early"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_neither_files_nor_processes(
    tmp_path: Path, number: signal.Signals, to: Callable[[int, int], None], *, late: bool
) -> None:
    (tmp_path / "tmp").mkdir()
    flags = ["--workload", "batch-scan", "--policies", "lru,plugin,mq,plugin-sidecar", "--jobs", "2"]
    with subprocess.Popen(
        [*LPC, "simulate", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        until(lambda: sum("LokyProcess" in one for one in running_in(process.pid)) == 2 or process.poll() is not None)
        if late:  # seven runs of LRU have ended
            assert process.stdout is not None
            while not process.stdout.readline().startswith(b"lru ") and process.poll() is None:
                pass
        to(process.pid, number)
        said = rest_of(process)
    assert process.returncode == 128 + number
    assert b"Traceback" not in said
    # Python's tracker of named semaphores warns after the end, in its own process, if it is slow.
    *before, last = [line for line in said.decode().splitlines() if line.startswith("lpc: ")]
    assert last == f"lpc: {'interrupted' if number == signal.SIGINT else 'terminated'}"
    before = [line for line in before if not line.startswith("lpc: simulating: ")]  # on a busy machine
    known = [re.fullmatch(r"lpc: stopped after (\d+) runs; what follows is from these", line) for line in before]
    counts = [int(one[1]) for one in known if one is not None]
    assert len(counts) == len(before)
    if number == signal.SIGTERM:
        assert not counts
    elif late:
        assert len(counts) == 1 and 7 <= counts[0] < 28
    until(lambda: not running_in(process.pid))
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sidecar_that_is_ended_while_it_exports_its_model_ends_the_export(tmp_path: Path, number: signal.Signals) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    with subprocess.Popen(
        [*LPC, "serve"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env={**env, "PYTHONPATH": str(Path.cwd())},
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        until(lambda: list(tmp_path.glob("models/default/.*")) or process.poll() is not None)
        process.send_signal(number)
        said = rest_of(process)
    assert process.returncode == 128 + number
    assert b"Traceback" not in said
    assert not running_in(process.pid)
    assert not [path for path in tmp_path.glob("models/default/*") if path.is_dir()]


@pytest.mark.parametrize(
    "flags", [("--model-version", "../elsewhere"), ("--model", "/elsewhere"), ("--model-version", ".hidden")]
)
def test_export_goes_nowhere_but_into_the_model_repository(tmp_path: Path, flags: tuple[str, str]) -> None:
    refused = lpc("export", "--models", str(tmp_path / "models"), *flags)
    assert refused.returncode == 2
    assert f"lpc: {flags[1]!r} names no folder in the model repository" in refused.stderr.decode()
    assert not list(tmp_path.iterdir())
