"""Engine and sidecar as different users of one machine, as in a pod: who may use the Unix socket. Real processes, real uids."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.eventually import patiently

SIDECAR, ENGINE, POD = 10001, 10002, 2000
"""User ids of sidecar and engine, and the pod's fsGroup: a supplementary group of all its containers."""

ASK = """
import os, sys, grpc
from lpc.v1 import predictor_pb2 as pb, predictor_pb2_grpc as rpc
socket, user, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups])
os.setgid(int(user))
os.setuid(int(user))
with grpc.insecure_channel(f"unix:{socket}") as channel:
    request = pb.PredictRequest(conversation=pb.Conversation(prompt="hello world"))
    try:
        print(rpc.ContinuationPredictorStub(channel).Predict(request, timeout=20).prediction.model_version)
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="becoming other users takes the rights of root, and setpriv"
)


@pytest.fixture
def pod() -> Iterator[Path]:
    """The folder of the socket, as the kubelet makes an emptyDir of a pod with an fsGroup: the group's, with the setgid bit."""
    with tempfile.TemporaryDirectory(prefix="lpc-pod-") as name:
        folder = Path(name)
        os.chown(folder, 0, POD)
        folder.chmod(0o2777)
        yield folder


@contextmanager
def serving(models: Path, socket: Path, mode: str | None, user: int = SIDECAR, group: int = SIDECAR) -> Iterator[None]:
    """Run `lpc serve` as a user. May read everything, as this Python may lie in root's home, but not write."""
    flags = [f"--reuid={user}", f"--regid={group}", f"--groups={POD}"]
    setpriv = ["setpriv", *flags, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    settings = {"MODELS": str(models), "MODEL": "tiny", "PORT": "0", "METRICS_PORT": "", "UNIX_SOCKET": str(socket)}
    settings |= {"UNIX_SOCKET_MODE": mode} if mode else {}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    environment |= {"HOME": "/tmp", "LPC_LOG_FORMAT": "text", **{f"LPC_{name}": value for name, value in settings.items()}}
    with subprocess.Popen(
        [*setpriv, sys.executable, "-m", "lpc_cli", "serve"], env=environment, stderr=subprocess.PIPE, text=True
    ) as sidecar:
        assert sidecar.stderr is not None
        said = ""
        for line in sidecar.stderr:
            said += line
            if "listening on" in line:
                break
        else:
            pytest.fail(said)
        try:
            yield
        finally:
            sidecar.terminate()
            sidecar.stderr.read()


def ask(socket: Path, user: int, *groups: int) -> str:
    """Ask for a prediction as a user, and return the model's version or what went wrong."""
    command = [sys.executable, "-c", ASK, str(socket), *map(str, (user, *groups))]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=patiently()).stdout.strip()


def test_by_default_the_socket_is_its_owners_alone(tiny_models: Path, pod: Path) -> None:
    socket = pod / "predictor.sock"
    with serving(tiny_models, socket, None):
        assert socket.stat().st_uid == SIDECAR
        assert ask(socket, SIDECAR) == "v1"
        assert "Permission denied" in ask(socket, ENGINE, POD)


def test_mode_0660_lets_in_the_pods_other_users_and_nobody_else(tiny_models: Path, pod: Path) -> None:
    # A folder that the sidecar has to make inherits the group as well.
    for socket in (pod / "predictor.sock", pod / "made" / "predictor.sock"):
        with serving(tiny_models, socket, "0660"):
            assert socket.stat().st_gid == POD
            assert ask(socket, ENGINE, POD) == "v1"
            assert "Permission denied" in ask(socket, ENGINE)
