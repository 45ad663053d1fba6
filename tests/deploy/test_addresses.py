"""Every address in a built manifest is that of a Service of the same build, under any namespace, name prefix and suffix."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_kubernetes import Object, kustomized, render

CHART = Path(__file__).parents[2] / "deploy/helm/learned-prefix-cache"
PARTS = {
    "cpu": ("predictor", "redis"),
    "gateway": ("predictor", "redis", "gateway"),
    "gpu": ("predictor", "redis"),
    "learning": ("predictor", "redis"),
    "minimal": ("predictor",),
    "mtls": ("predictor", "redis"),
    "node": ("node", "redis"),
    "redis-cluster": ("predictor", "redis-cluster"),
}
HOST = re.compile(r"(?:///|//|@)((?!localhost|127\.)[a-z0-9][a-z0-9.-]*):\d+")


def texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all strings of an object, with the name of their key."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from texts(one, str(name))
    elif isinstance(value, list):
        for one in value:
            yield from texts(one, key)
    elif isinstance(value, str):
        yield key, value


def addresses(objects: list[Object]) -> list[tuple[str, str]]:
    """Return the hosts in settings of ConfigMaps and containers, with the setting's name."""
    found = []
    for one in objects:
        if one["kind"] == "ConfigMap":
            pairs = [(name, value) for name, value in one.get("data", {}).items() if name.startswith("LPC_")]
        else:
            pairs = [pair for pair in texts(one.get("spec", {})) if pair[0] == "value"]
        found += [(name, host) for name, value in pairs for host in HOST.findall(value)]
    return found


def check(objects: list[Object], namespace: str) -> None:
    services = {
        (one["metadata"]["name"], one["metadata"].get("namespace", namespace)) for one in objects if one["kind"] == "Service"
    }
    found = addresses(objects)
    for name, host in found:
        service, _, rest = host.partition(".")
        if host.endswith(".example") or name == "LPC_GATEWAY_ENGINES":
            continue  # engines are not part of the build
        own = rest.removesuffix(".cluster.local").removesuffix(".svc") if rest else namespace
        assert (service, own) in services, f"{name}={host}, but the Services are {sorted(services)}"
    for one in objects:
        if one["kind"] == "StatefulSet":
            assert (one["spec"]["serviceName"], namespace) in services


def test_every_overlay_is_tested() -> None:
    assert set(PARTS) == {path.name for path in (CHART.parents[1] / "overlays").iterdir()}


@pytest.mark.parametrize("names", [("other", "", ""), ("lpc", "blue-", ""), ("other", "blue-", "-v2")], ids=str)
@pytest.mark.parametrize("overlay", PARTS)
def test_an_overlay_in_another_namespace_under_other_names(overlay: str, names: tuple[str, str, str], tmp_path: Path) -> None:
    namespace, prefix, suffix = names
    if overlay == "gateway":
        kustomized(tmp_path / "deploy")
    else:
        (tmp_path / "deploy").symlink_to(CHART.parents[1])
    own = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "namePrefix": prefix,
        "nameSuffix": suffix,
        "resources": [f"../deploy/overlays/{overlay}"],
        "transformers": [f"../deploy/addresses/{part}" for part in PARTS[overlay]],
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own/kustomization.yaml").write_text(yaml.safe_dump(own))
    objects = render(tmp_path / "own")
    found = dict(addresses(objects))
    assert found["LPC_PREDICTOR_ADDRESS"].endswith(f".{namespace}.svc")
    check(objects, namespace)
    if overlay == "redis-cluster":
        (forming,) = [one for one in objects if one["kind"] == "Deployment" and "redis-form" in one["metadata"]["name"]]
        (container,) = forming["spec"]["template"]["spec"]["containers"]
        given = {one["name"]: one.get("value") for one in container["env"]}
        assert (given["SET"], given["SERVICE"]) == (f"{prefix}lpc-redis{suffix}", f"{prefix}lpc-redis-nodes{suffix}")


@pytest.mark.parametrize("overlay", PARTS)
def test_an_overlay_as_it_is(overlay: str, tmp_path: Path) -> None:
    tree = kustomized(tmp_path / "deploy") if overlay == "gateway" else CHART.parents[1]
    check(render(tree / "overlays" / overlay), "lpc")


@pytest.mark.parametrize(
    "options",
    [
        ("r", "other"),
        ("another-release", "n2"),
        ("r", "other", "redis.mode=cluster", "redis.password=a", "redis.adminPassword=b"),
        ("r", "n3", "gateway.enabled=true", "gateway.engines={http://engine.example:8000}"),
        ("r", "other", "redis.mode=embedded", "redis.password=a", "kind=DaemonSet"),
    ],
    ids=str,
)
def test_the_chart_under_other_names(options: tuple[str, ...]) -> None:
    release, namespace, *values = options
    helm = Path(sys.executable).parent / "helm"
    command = [helm, "template", release, CHART, "--namespace", namespace]
    for value in values:
        command += ["--set", value]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert addresses(objects)
    check(objects, namespace)
