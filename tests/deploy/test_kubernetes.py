"""Every overlay is rendered by kustomize, and every object is held against the schemas and against what the code offers."""

import base64
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import kubernetes_validate
import pytest
import redis
import yaml
from prometheus_client import generate_latest
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from eviction_client.settings import ClientSettings
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from eviction_client.transport.client import TIMEOUT_S
from lpc.wire.redis_connection import Connection
from lpc_cli.cli import app
from predictor_service.batching.batch_queue import PATIENCE_SHARE
from predictor_service.metrics import Metrics
from predictor_service.settings import ServiceSettings
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.settings import CacheServerSettings
from testing.processes import free_port
from tests.dockerfile import ROOT, stages
from tests.eventually import patiently

DEPLOY = ROOT / "deploy"
OVERLAYS = ("minimal", "cpu", "gpu", "node", "redis-cluster", "mtls", "learning", "gateway")
EXAMPLES = ("vllm", "vllm-one-pod", "lmcache")
OWN_LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/component"}
Object = dict[str, Any]

# The oldest and the newest release whose schemas the validator has, of those with autoscaling/v2 and gRPC probes.
RELEASES = ("1.27", "1.37")
BROUGHT = {"lpc-predictor-tls", "lpc-redis-tls", "lpc-lmcache"}
"""What an operator brings: certificates, LMCache's token."""


@cache
def rendered(overlay: str) -> list[Object]:
    if overlay != "gateway":
        return render(DEPLOY / "overlays" / overlay)
    with tempfile.TemporaryDirectory() as folder:
        return render(kustomized(Path(folder) / "deploy") / "overlays/gateway")


def kustomized(tree: Path, *options: str) -> Path:
    """Copy `deploy` and write the secrets that the overlay `gateway` wants, as docs/how-to/deploy.md says; return the copy."""
    shutil.copytree(DEPLOY, tree, symlinks=True)
    command = [sys.executable, "-m", "lpc_cli", "secrets", tree / "overlays/gateway/secrets", "--client", "app", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return tree


def render(folder: Path) -> list[Object]:
    kubectl = Path(sys.executable).parent / "kubectl"
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return list(yaml.safe_load_all(done.stdout))


def example(name: str) -> list[Object]:
    return list(yaml.safe_load_all((DEPLOY / f"examples/{name}.yaml").read_text()))


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield each pod template with its owner's kind and name."""
    for found in objects:
        spec = found.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", {}).get("template") or spec.get("template")
        if template is not None:
            yield f"{found['kind']} {found['metadata']['name']}", template


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and re.fullmatch(rf"{name}(-[a-z0-9]{{10}})?", o["metadata"]["name"])]
    return found


def secret_data(objects: list[Object], name: str) -> dict[str, bytes]:
    found = named(objects, "Secret", name)
    data = {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}
    return data | {key: value.encode() for key, value in found.get("stringData", {}).items()}


@pytest.fixture(params=[*OVERLAYS, *EXAMPLES])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return example(request.param) if request.param in EXAMPLES else rendered(request.param)


@pytest.mark.parametrize("release", RELEASES)
def test_the_schema_of_kubernetes_accepts_every_object(objects: list[Object], release: str) -> None:
    for found in objects:
        if found["kind"] != "PodMonitor":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kubernetes_validate.validate(found, release, strict=True)


def test_every_pod_is_restricted_and_bounded(objects: list[Object]) -> None:
    for owner, pod in pods(objects):
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0, owner
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert pod["spec"]["automountServiceAccountToken"] is False, owner
        for container in containers(pod):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, owner
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, owner
            # vLLM compiles into its home.
            assert container["name"] == "vllm" or container["securityContext"]["readOnlyRootFilesystem"] is True, owner
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}, owner
            assert "memory" in container["resources"]["limits"], owner


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_has_the_recommended_labels(overlay: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    shared = {"part-of": "learned-prefix-cache", "managed-by": "kustomize", "version": version}
    objects = rendered(overlay)
    for one in objects:
        labels = {f"app.kubernetes.io/{name}": value for name, value in shared.items()}
        assert labels.items() <= one["metadata"]["labels"].items(), one["metadata"]["name"]
        assert one["kind"] == "Namespace" or set(one["metadata"]["labels"]) >= OWN_LABELS, one["metadata"]["name"]
    for owner, pod in pods(objects):
        assert OWN_LABELS | {"app.kubernetes.io/part-of"} <= set(pod["metadata"]["labels"]), owner


def test_every_serving_container_has_probes(objects: list[Object]) -> None:
    for owner, pod in pods(objects):
        if not owner.startswith(("Job", "CronJob")):
            for container in pod["spec"]["containers"]:
                assert {"readinessProbe", "startupProbe"} & set(container), owner


def test_our_images_have_a_version_and_those_of_others_a_digest(objects: list[Object]) -> None:
    for owner, pod in pods(objects):
        for container in containers(pod):
            pinned = "" if container["image"].startswith("lpc-") else "@sha256:[0-9a-f]{64}"
            assert re.fullmatch(rf"[\w./-]+:[\w.-]*\d[\w.-]*{pinned}", container["image"]), owner


def test_every_object_that_a_pod_needs_is_there(objects: list[Object]) -> None:
    known = {(o["kind"], o["metadata"]["name"]) for o in [*objects, *rendered("cpu")]}
    suspended = {f"{o['kind']} {o['metadata']['name']}" for o in objects if o.get("spec", {}).get("suspend")}
    for owner, pod in pods(objects):
        if owner in suspended:
            continue
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        needed = [("ConfigMap", v["configMap"]["name"]) for v in volumes.values() if "configMap" in v]
        needed += [
            ("Secret", v["secret"]["secretName"])
            for v in volumes.values()
            if not v.get("secret", {"optional": True}).get("optional")
        ]
        needed += [
            ("PersistentVolumeClaim", v["persistentVolumeClaim"]["claimName"])
            for v in volumes.values()
            if "persistentVolumeClaim" in v
        ]
        for container in containers(pod):
            needed += [("ConfigMap", e["configMapRef"]["name"]) for e in container.get("envFrom", [])]
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                needed += [("Secret", reference["name"])] if reference else []
            templates = [c for o in objects for c in o.get("spec", {}).get("volumeClaimTemplates", [])]
            claims = {template["metadata"]["name"] for template in templates}
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes) | claims, owner
        assert {need for need in needed if need[1] not in BROUGHT} <= known, owner


def test_every_selector_finds_its_pods(objects: list[Object]) -> None:
    labels = [pod["metadata"]["labels"] for _, pod in pods(objects)]

    def finds(wanted: dict[str, str]) -> bool:
        return any(wanted.items() <= found.items() for found in labels)

    for found in objects:
        spec = found.get("spec", {})
        if found["kind"] == "Service":
            assert finds(spec["selector"])
            ports = {p["name"] for _, pod in pods(objects) for c in containers(pod) for p in c.get("ports", [])}
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        elif found["kind"] in {"PodDisruptionBudget", "PodMonitor", "Deployment", "DaemonSet", "StatefulSet"}:
            assert finds(spec["selector"]["matchLabels"])
        elif found["kind"] == "NetworkPolicy":
            assert finds(spec["podSelector"]["matchLabels"])


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_the_autoscalers_metric_is_the_sidecars_and_the_adapter_gives_it(overlay: str) -> None:
    (metric,) = named(rendered(overlay), "HorizontalPodAutoscaler", "lpc-predictor")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert f"\n{name} " in generate_latest(Metrics().registry).decode()
    (rule,) = yaml.safe_load((DEPLOY / "prometheus/adapter-values.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["as"] == name and rule["seriesQuery"].startswith(name)
    # It must add sidecars before one of them refuses.
    assert float(metric["pods"]["target"]["averageValue"]) <= 0.5 * PATIENCE_SHARE * TIMEOUT_S


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_setting_exists_and_is_valid(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LPC_")]:
        monkeypatch.delenv(name)
    sides: list[tuple[str, type[BaseSettings]]] = [("lpc-predictor", ServiceSettings), ("lpc-engine", ClientSettings)]
    if overlay == "gateway":
        # It reaches the response caches as engines reach sidecars.
        sides += [("lpc-gateway", GatewaySettings), ("lpc-gateway", ClientSettings), ("lpc-caches", CacheServerSettings)]
    for configuration, settings in sides:
        data = named(rendered(overlay), "ConfigMap", configuration)["data"]
        ours = {name: value for name, value in data.items() if name.startswith("LPC_")}
        both = {*GatewaySettings.model_fields, *ClientSettings.model_fields}
        known = both if configuration == "lpc-gateway" else set(settings.model_fields)
        assert {name.removeprefix("LPC_").lower() for name in ours} <= known
        with monkeypatch.context() as patched:
            for name, value in ours.items():
                patched.setenv(name, value)
            settings()


def test_the_sidecars_ports_and_user_are_the_images() -> None:
    image = stages()[1]["cpu"]
    (_, pod) = next(p for p in pods(rendered("cpu")) if p[0] == "Deployment lpc-predictor")
    ports = {str(port["containerPort"]) for port in pod["spec"]["containers"][0]["ports"]}
    assert ports == set(image.texts("EXPOSE")[0].split())
    security = pod["spec"]["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == image.texts("USER")[0]
    mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert {str(Path(image.env()[name]).parent) for name in ("HF_HOME", "LPC_UNIX_SOCKET")} <= mounts


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_jobs_commands_are_lpcs(overlay: str) -> None:
    seen = []
    for owner, pod in pods(rendered(overlay)):
        for container in containers(pod):
            if container["image"].startswith("lpc-") and "command" not in container:
                flag = next((i for i, word in enumerate(container["args"]) if word.startswith("--")), len(container["args"]))
                command, arguments = container["args"][:flag], container["args"][flag:]
                usage = re.sub(
                    r"\x1b\[[0-9;]*m", "", CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
                )
                for option in arguments[::2]:
                    assert f"{option} " in usage, (owner, option)
                seen.append(" ".join(command))
    more = {"learning": ["export", "models prune", "train"], "gateway": ["cache serve", "gateway"]}
    assert sorted(seen) == sorted(["serve", *more.get(overlay, [])])


def saved_states(objects: list[Object]) -> Iterator[Object]:
    """Yield the volume of each container's LPC_STATE."""
    data = {o["metadata"]["name"]: o["data"] for o in objects if o["kind"] == "ConfigMap"}
    for _, pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        for container in containers(pod):
            values: dict[str, str] = {}
            for source in container.get("envFrom", []):
                values |= data.get(source.get("configMapRef", {}).get("name"), {})
            values |= {one["name"]: one.get("value", "") for one in container.get("env", [])}
            if state := values.get("LPC_STATE"):
                mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
                yield volumes[mounts[max((path for path in mounts if f"{state}/".startswith(f"{path}/")), key=len)]]


def test_each_pod_has_a_saved_state_of_its_own(objects: list[Object]) -> None:
    """A second sidecar on one folder does not start: neither a second replica nor the new pod of an upgrade."""
    volumes = list(saved_states(objects))
    assert all("emptyDir" in volume for volume in volumes)
    assert volumes or not any(o["metadata"]["name"] == "lpc-predictor" for o in objects)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_labels_are_logged_and_learnt_from_where_the_operator_chose_it(overlay: str) -> None:
    objects = rendered(overlay)
    learning = overlay == "learning"
    claims = {o["metadata"]["name"] for o in objects if o["kind"] == "PersistentVolumeClaim"}
    assert claims == ({"lpc-labels", "lpc-models"} if learning else set())
    running = {o["metadata"]["name"] for o in objects if o["kind"] == "CronJob" and not o["spec"].get("suspend")}
    assert running == ({"lpc-retrain"} if learning else set())
    assert ("LPC_LABEL_LOG" in named(objects, "ConfigMap", "lpc-predictor")["data"]) is learning


def test_the_nightly_job_and_the_sidecars_share_their_folders() -> None:
    objects = rendered("learning")
    folder = named(objects, "ConfigMap", "lpc-predictor")["data"]["LPC_LABEL_LOG"]

    def mounted(pod: Object, container: Object) -> dict[str, tuple[str, bool]]:
        claims = {
            v["name"]: v["persistentVolumeClaim"]["claimName"]
            for v in pod["spec"]["volumes"]
            if len(v) == 2 and "persistentVolumeClaim" in v
        }
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] in claims]
        return {mount["mountPath"]: (claims[mount["name"]], mount.get("readOnly", False)) for mount in mounts}

    (sidecar,) = [pod for owner, pod in pods(objects) if owner == "Deployment lpc-predictor"]
    (job,) = [pod for owner, pod in pods(objects) if owner == "CronJob lpc-retrain"]
    (train,) = job["spec"]["initContainers"]
    assert train["args"] == ["train", "--from", folder, "--models", "/models"]
    assert mounted(sidecar, sidecar["spec"]["containers"][0]) == {
        folder: ("lpc-labels", False),
        "/models": ("lpc-models", True),
    }
    assert mounted(job, train) == {folder: ("lpc-labels", True), "/models": ("lpc-models", False)}
    claim = named(objects, "PersistentVolumeClaim", "lpc-labels")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    # What the sidecars may write fits into the claim, with a file of each that is being written.
    mib = int(named(objects, "ConfigMap", "lpc-predictor")["data"]["LPC_LABEL_LOG_MIB"])
    assert mib * 1.1 < int(claim["resources"]["requests"]["storage"].removesuffix("Gi")) * 1024


def test_the_single_redis_lets_an_engine_in_and_nothing_else(tmp_path: Path) -> None:
    """Runs the container's own shell lines, with its folders below another."""
    (_, pod) = next(p for p in pods(rendered("cpu")) if p[0] == "Deployment lpc-redis")
    (container,) = containers(pod)
    port = free_port()
    (tmp_path / "redis.conf").write_text((DEPLOY / "redis/redis.conf").read_text())
    secret = tmp_path / "password"
    lines = container["args"][0].replace("/etc/redis-password/password", str(secret)).replace("sleep 10", "sleep 0.2")
    lines = lines.replace("/run/redis", str(tmp_path)).replace("/etc/redis", str(tmp_path)).rstrip()
    command = [*container["command"], f"{lines} --port {port} --bind 127.0.0.1"]
    secret.write_text("replace-me")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=patiently())
    assert refused.returncode == 1 and "replace the password" in refused.stdout
    password = r's3cret "/#?%@ \ x'
    secret.write_text(password)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        check_rights(port, password)
        probe = container["readinessProbe"]["exec"]["command"]
        done = subprocess.run([probe[0], "-p", str(port), *probe[1:]], capture_output=True, text=True)
        assert done.stdout.strip() == "PONG"
        secret.write_text("another one")
        # Kubernetes starts it again, with the new password.
        assert server.wait(patiently()) == 0
    finally:
        server.terminate()
        server.wait(patiently())


def check_rights(port: int, password: str) -> None:
    """Wait for the server; then an engine can store, and do nothing else."""
    deadline = time.monotonic() + patiently()
    while True:
        with contextlib.suppress(redis.ConnectionError), contextlib.closing(redis.Redis(port=port)) as probe:
            try:
                probe.ping()
            except redis.AuthenticationError:
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    namespace = Namespace(hash_algorithm="sha256_cbor", hash_seed="0", block_size=16, model="m")
    store = RedisStore(Connection(f"redis://engine:{quote(password, safe='')}@127.0.0.1:{port}/0"), namespace)
    try:
        store.check()
    finally:
        store.close()
    with contextlib.closing(redis.Redis(port=port, username="engine", password=password)) as engine:
        for forbidden in (("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("GET", "other")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                engine.execute_command(*forbidden)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_sidecars_that_share_an_address_and_a_redis_tell_each_other_of_turns(overlay: str) -> None:
    """As docs/explanation/learning.md says. All overlays but `minimal` have a Redis."""
    objects = rendered(overlay)
    has_redis = any(o["metadata"]["name"] == "lpc-redis" for o in objects)
    settings = named(objects, "ConfigMap", "lpc-predictor")["data"]
    assert ("LPC_REDIS_URL" in settings) is has_redis is (overlay != "minimal")
    assert has_redis or "LPC_LABEL_LOG" not in settings
    if not has_redis:
        return
    url = urlsplit(settings["LPC_REDIS_URL"])
    assert url.username == "engine"
    assert (url.hostname, url.scheme) == ("lpc-redis.lpc.svc", "rediss" if overlay == "mtls" else "redis")
    assert settings.get("LPC_REDIS_CLUSTER") == ("true" if overlay == "redis-cluster" else None)
    (pod,) = [pod for owner, pod in pods(objects) if owner.split()[1] == "lpc-predictor"]
    environment = {e["name"]: e for e in pod["spec"]["containers"][0]["env"]}
    assert environment["LPC_REDIS_PASSWORD_FILE"]["value"] == "/etc/lpc/redis/password"
    (secret,) = [volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "redis-password"]
    assert secret["secretName"] == "lpc-redis"

    def lets(rules: list[Object], side: str, label: str) -> bool:
        peers = [peer for rule in rules for peer in rule[side] if {"port": "redis"} in rule["ports"]]
        return {"podSelector": {"matchLabels": {"app.kubernetes.io/name": label}}} in peers

    assert lets(named(objects, "NetworkPolicy", "lpc-predictor")["spec"]["egress"], "to", "lpc-redis")
    assert lets(named(objects, "NetworkPolicy", "lpc-redis")["spec"]["ingress"], "from", "lpc-predictor")
