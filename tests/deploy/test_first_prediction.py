"""`kubectl apply` or `helm install`, simulated: the sidecar's container is started as a real process with the manifests' own
command and environment, as the pod's user, and an engine with the manifests' settings and no other gets its token ids read.
Where the manifests name a Redis it is away here, as it may be on the first day: predictions do not wait for it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from eviction_client.settings import ClientSettings
from eviction_client.transport.client import PredictorClient
from testing.processes import free_port
from tests.chat_templates import STYLES, tokenizer_of
from tests.deploy.test_kubernetes import Object, example, named, pods, rendered, secret_data
from tests.dockerfile import stages
from tests.eventually import patiently, until

IMAGE = stages()[1]["cpu"]
MANIFESTS: dict[str, Callable[[], list[Object]]] = {
    "kustomize minimal": lambda: rendered("minimal"),
    "one pod": lambda: [*example("vllm-one-pod"), *rendered("minimal")],
}
CAN_BE_OTHERS = os.geteuid() == 0 and shutil.which("setpriv") is not None


@dataclass(frozen=True)
class Container:
    """A container whose folders lie in one of this machine. ``engine``: the environment of the engine that asks it."""

    command: list[str]
    environment: dict[str, str]
    engine: dict[str, str]
    user: tuple[int, int]


def environment_of(container: Object, objects: list[Object]) -> dict[str, str]:
    """Return what `env` and `envFrom` come to."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for entry in container.get("env", []):
        if "value" in entry:
            found[entry["name"]] = entry["value"]
        else:
            key = entry["valueFrom"]["secretKeyRef"]
            found[entry["name"]] = secret_data(objects, key["name"])[key["key"]].decode()
    return found


def placed(objects: list[Object], folder: Path, models: Path) -> Container:
    """Return the sidecar's container with its volumes below a folder, and free ports in place of the image's."""
    pod, container = next(
        (pod, one) for _, pod in pods(objects) for one in pod["spec"]["containers"] if one["name"] == "predictor"
    )
    security = {**pod["spec"]["securityContext"], **container["securityContext"]}
    assert security["readOnlyRootFilesystem"] is True
    places = {IMAGE.env()["LPC_MODELS"]: models}
    for mount in container["volumeMounts"]:
        places[mount["mountPath"]] = place = folder / mount["name"]
        place.mkdir()
        os.chown(place, 0, security["fsGroup"])
        place.chmod(0o2777)

    def here(value: str) -> str:
        for inside, place in places.items():
            if value == inside or value.startswith(f"{inside}/"):
                return str(place) + value.removeprefix(inside)
        return value.replace("unix:///run/lpc", f"unix://{places['/run/lpc']}")

    ports = {name: str(free_port()) for name in ("LPC_PORT", "LPC_METRICS_PORT")}
    ours = {**IMAGE.env(), **environment_of(container, objects)}
    environment = {name: here(value) for name, value in ours.items() if name != "PATH"} | ports
    neighbours = [one for one in pod["spec"]["containers"] if one["name"] == "vllm"]
    engine = environment_of(neighbours[0], objects) if neighbours else named(objects, "ConfigMap", "lpc-engine")["data"]
    engine = {name: here(value) for name, value in engine.items() if name.startswith("LPC_")}
    if not engine["LPC_PREDICTOR_ADDRESS"].startswith("unix:"):
        assert engine["LPC_PREDICTOR_ADDRESS"].endswith(":50051")
        engine["LPC_PREDICTOR_ADDRESS"] = f"127.0.0.1:{ports['LPC_PORT']}"
    command = [*IMAGE.command("ENTRYPOINT"), *container["args"]]
    return Container(command, environment, engine, (security["runAsUser"], security["runAsGroup"]))


@contextmanager
def running(container: Container) -> Iterator[None]:
    """Run it. As the pod's user it can write to its volumes alone; reading is let through, as this Python may be root's."""
    user, group = container.user
    become = [f"--reuid={user}", f"--regid={group}", f"--groups={group}"]
    setpriv = ["setpriv", *become, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"] if CAN_BE_OTHERS else []
    program = [sys.executable, "-m", "lpc_cli", *container.command[1:]]
    paths = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    log = Path(container.environment["HOME"]).parent / "log"
    with log.open("w") as output:
        process = subprocess.Popen([*setpriv, *program], env={**paths, **container.environment}, stderr=output)
        try:
            until(lambda: "listening on" in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()
            assert process.wait(patiently()) == 0, log.read_text()


@pytest.mark.timeout(300)  # two processes are started, and one of them another
@pytest.mark.parametrize("manifests", MANIFESTS)
def test_token_ids_are_read_with_no_setting_changed(manifests: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(STYLES["chatml"])
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "bye"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # Not pytest's own folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="lpc-pod-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        tokenizer.save_pretrained(folder / "engine")
        container = placed(MANIFESTS[manifests](), folder, models)
        for variable in [variable for variable in os.environ if variable.startswith("LPC_")]:
            monkeypatch.delenv(variable)
        for variable, value in container.engine.items():
            monkeypatch.setenv(variable, value)
        settings = ClientSettings()
        with running(container):
            client = PredictorClient(
                settings.predictor_address,
                served_model="any/name",
                tokenizer=lambda: {path.name: path for path in (folder / "engine").iterdir()},
            )
            try:
                until(lambda: client.tokenizer_state == "ready")
                client.ask("r", token_ids=tokenizer(text, add_special_tokens=False)["input_ids"])
                until(lambda: client.waiting == 0)
                answer = client.take("r")
            finally:
                client.close()
            with urlopen(f"http://127.0.0.1:{container.environment['LPC_METRICS_PORT']}/metrics", timeout=patiently()) as page:
                metrics = page.read().decode()
        assert answer is not None and not answer.unread
        assert answer.turn_count == 2 and 0 < answer.probability < 1
        assert 'lpc_tokenizers{state="ready"} 1.0' in metrics
        # What it keeps lies in the volume that outlives the container.
        kept = {path.relative_to(folder).parts[0] for path in folder.rglob("returns.npz")}
        assert kept == {"cache" if manifests != "one pod" else "predictor-cache"}
