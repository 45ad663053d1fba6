"""The Helm chart: it says what the kustomize overlays say, its schema refuses what is wrong, and every object is valid."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from eviction_client.settings import ClientSettings
from lpc_cli.cli import app
from predictor_service.settings import ServiceSettings
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.settings import CacheServerSettings
from tests.deploy.chart import CHART, OF_THE_CHART_ALONE, VALUES, Object, alike, charted, helm
from tests.deploy.test_kubernetes import (
    OVERLAYS,
    OWN_LABELS,
    RELEASES,
    containers,
    kustomized,
    named,
    pods,
    render,
    rendered,
    saved_states,
    secret_data,
)
from tests.dockerfile import ROOT

OPERATORS = {"PodMonitor", "PrometheusRule"}


def test_helm_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", CHART, *(word for path in VALUES.values() for word in ("--values", path)))
    assert done.returncode == 0 and "[WARNING]" not in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_chart_and_overlay_are_the_same_objects(overlay: str) -> None:
    ours, theirs = alike(charted(overlay)), alike(rendered(overlay))
    assert set(ours) - OF_THE_CHART_ALONE == set(theirs)
    for name in theirs:
        assert ours[name] == theirs[name], name


def test_on_a_folder_of_the_node_the_old_sidecar_goes_before_the_new_one_comes() -> None:
    objects = charted("node", "--set", "cache.volume.hostPath.path=/x")
    rolling = named(objects, "DaemonSet", "lpc-predictor")["spec"]["updateStrategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 1, "maxSurge": 0}
    assert [volume["hostPath"] for volume in saved_states(objects)] == [{"path": "/x"}]


def test_no_value_of_the_chart_makes_pods_share_a_saved_state() -> None:
    volumes = list(saved_states(charted("everything")))
    assert volumes and all({"emptyDir", "ephemeral"} & volume.keys() for volume in volumes)


@pytest.mark.parametrize("release", RELEASES)
def test_the_schema_of_kubernetes_accepts_every_object(release: str) -> None:
    """Those that the overlays do not have; the others are the overlays'."""
    for found in charted("everything"):
        if found["kind"] not in OPERATORS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kubernetes_validate.validate(found, release, strict=True)


CRD = Path(sys.executable).parents[1] / "crd"


@pytest.mark.skipif(not (CRD / "node_modules").exists(), reason="the operator's schema is installed by `make test-podmonitor`")
def test_the_operators_schema_accepts_the_pod_monitors_and_the_rules() -> None:
    node = [shutil.which("node") or "node", "--input-type=module", "-e"]

    def accepts(found: Object) -> bool:
        kind = found["kind"]
        script = f"""
            import {{{kind}}} from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/{kind}";
            import {{readFileSync}} from "fs";
            new {kind}(JSON.parse(readFileSync(0))).validate();
        """
        return subprocess.run([*node, script], cwd=CRD, input=json.dumps(found), capture_output=True, text=True).returncode == 0

    found = [o for o in [*charted("everything"), *rendered("cpu")] if o["kind"] in OPERATORS]
    assert len(found) == 4
    for one in found:
        assert accepts(one), one["metadata"]["name"]
        (field, value) = next((key, value) for key, value in one["spec"].items() if isinstance(value, list))
        assert not accepts({**one, "spec": {**one["spec"], field: [{**value[0], "interval": 15}]}})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("redis.mode=sentinel", "at '/redis/mode': value must be one of 'none', 'embedded', 'external', 'cluster'"),
        ("modle.name=x", "additional properties 'modle' not allowed"),
        ("gpu.memory=1", "at '/gpu': additional properties 'memory' not allowed"),
        ("settings.threads=2", "'threads' does not match pattern '^LPC_[A-Z0-9_]+$'"),
        ("model.volume.size=5GB", "at '/model/volume/size': '5GB' does not match pattern"),
        ("learning.enabled=true", "learning.enabled needs model.source: volume"),
        ("redis.mode=embedded", "redis.mode: embedded needs redis.password, or redis.existingSecret"),
        ("redis.mode=cluster,redis.password=x", "needs redis.password and redis.adminPassword, or redis.existingSecret"),
        ("redis.mode=external,redis.external.url=redis://:x@h:1", "holds a password, and a ConfigMap would show it"),
        ("redis.mode=cluster,redis.tls.enabled=true", "redis.tls is of redis.mode: embedded, not of cluster"),
        ("kind=DaemonSet,autoscaling.enabled=true", "a DaemonSet has a sidecar on every node"),
        ("cache.volume.persistentVolumeClaim.claimName=x", "each sidecar needs a folder of its own"),
        ("kind=DaemonSet,cache.volume.persistentVolumeClaim.claimName=x", "each sidecar needs a folder of its own"),
        ("cache.volume.nfs.server=x", "each sidecar needs a folder of its own"),
        ("cache.volume.hostPath.path=/x", "each sidecar needs a folder of its own"),
        ("redis.mode=external", "redis.mode: external needs redis.external.url"),
        ("gateway.enabled=true", "gateway.enabled needs gateway.engines"),
        (
            "gateway.enabled=true,gateway.engines={http://e},gateway.existingSecret=x",
            "gateway.existingTlsSecret go together",
        ),
        (
            "gateway.enabled=true,gateway.engines={http://e},gateway.warm.enabled=true,gateway.warm.client=web",
            "gateway.warm.client must be one of gateway.clients",
        ),
        ("gateway.clients={a b}", "at '/gateway/clients/0': 'a b' does not match pattern"),
        ("gateway.engines={vllm:8000}", "at '/gateway/engines/0': 'vllm:8000' does not match pattern '^https?://'"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong: str, says: str) -> None:
    done = helm("template", "lpc", CHART, "--set", wrong)
    assert done.returncode != 0 and says in done.stderr, done.stderr


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    def compare(values: object, schema: dict[str, object], where: str) -> None:
        properties = schema.get("properties")
        if isinstance(properties, dict):
            assert isinstance(values, dict)
            assert set(values) | {"enabled", "global", "requests", "limits", "claims"} >= set(properties) >= set(values), where
            assert schema["additionalProperties"] is False, where
            for name, value in values.items():
                compare(value, properties[name], f"{where}/{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()), "")


def test_every_setting_exists_and_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = charted("everything")
    maps: dict[str, tuple[type[BaseSettings], ...]]
    maps = {
        "lpc-predictor": (ServiceSettings,),
        "lpc-engine": (ClientSettings,),
        "lpc-gateway": (GatewaySettings, ClientSettings),
        "lpc-caches": (CacheServerSettings,),
    }
    for found in objects:
        readers = maps.get(found["metadata"]["name"], ())
        if found["kind"] != "ConfigMap" or not readers:
            continue
        ours = {key: value for key, value in found["data"].items() if key.startswith("LPC_")}
        assert {key.removeprefix("LPC_").lower() for key in ours} <= {
            name for reader in readers for name in reader.model_fields
        }
        with monkeypatch.context() as patched:
            for key, value in ours.items():
                patched.setenv(key, value)
            for reader in readers:
                reader()


def test_values_reach_the_pods() -> None:
    objects = charted("everything")
    (_, pod) = next(found for found in pods(objects) if found[0] == "Deployment lpc-predictor")
    (sidecar,) = pod["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in sidecar["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes[mounts["/tokenizers"]]["persistentVolumeClaim"] == {"claimName": "tokenizers"}
    assert volumes[mounts["/models"]]["persistentVolumeClaim"] == {"claimName": "my-models"}
    assert "volumeClaimTemplate" in volumes[mounts["/cache"]]["ephemeral"]
    settings = named(objects, "ConfigMap", "lpc-predictor")["data"]
    assert json.loads(settings["LPC_SERVED_MODELS"]) == {"my-model": "/tokenizers/my-model"}
    assert settings["LPC_MAX_QUEUE_ITEMS"] == "2048"
    claims = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "PersistentVolumeClaim"}
    assert set(claims) == {"lpc-labels"} and claims["lpc-labels"]["storageClassName"] == "nfs"
    for owner, template in pods(objects):
        assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}], owner
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(template["spec"]["securityContext"]), owner
        for volume in template["spec"]["volumes"]:
            assert volume.get("persistentVolumeClaim", {}).get("claimName") != "lpc-models", owner
    (client, _) = named(objects, "NetworkPolicy", "lpc-predictor")["spec"]["ingress"]
    assert len(client["from"]) == 2


GATEWAY = ("--set", "gateway.enabled=true,gateway.engines={http://vllm:8000}")


def test_response_caches_leave_sidecars_and_engines_alone() -> None:
    plain, cached = ({f"{o['kind']} {o['metadata']['name']}": o for o in charted("minimal", *more)} for more in ((), GATEWAY))
    assert plain.items() <= cached.items()
    added = {name.partition(" ")[2] for name in cached.keys() - plain.keys()}
    assert {name.removeprefix("lpc-").partition("-")[0] for name in added} == {"gateway", "caches", "response"}


WARM = "gateway.warm.enabled=true"


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The overlay `gateway` with the component `warm`."""
    tree = kustomized(tmp_path_factory.mktemp("warm") / "deploy")
    page = tree / "overlays/gateway/kustomization.yaml"
    page.write_text(page.read_text().replace("components:\n", "components:\n  - ../../components/warm\n"))
    return render(tree / "overlays/gateway")


@pytest.mark.parametrize("release", RELEASES)
def test_the_warm_up_is_the_same_in_chart_and_component(warmed: list[Object], release: str) -> None:
    ours, theirs = alike(charted("gateway", "--set", WARM)), alike(warmed)
    assert set(ours) - OF_THE_CHART_ALONE == set(theirs)
    names = {f"{kind} lpc-gateway-warm" for kind in ("CronJob", "NetworkPolicy")}
    assert set(theirs) - set(alike(rendered("gateway"))) == names
    for name in names:
        assert ours[name] == theirs[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kubernetes_validate.validate(ours[name], release, strict=True)


def test_the_warm_up_runs_a_command_that_exists_with_the_token_of_one_client() -> None:
    chosen = "gateway.clients={app,web},gateway.warm.client=web,gateway.warm.scopes={faq,support}"
    objects = charted("gateway", "--set", f"{WARM},{chosen}", "--set-string", "gateway.warm.schedule=5 1 * * *")
    job = named(objects, "CronJob", "lpc-gateway-warm")
    (pod,) = [pod for owner, pod in pods(objects) if owner == "CronJob lpc-gateway-warm"]
    (container,) = pod["spec"]["containers"]
    assert job["spec"]["schedule"] == "5 1 * * *" and container["args"][-2:] == ["--scope=faq", "--scope=support"]
    usage = CliRunner().invoke(app, ["cache", "warm", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert all(word.partition("=")[0] in usage for word in container["args"][2:])
    secret = next(volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume)
    (item,) = secret["items"]
    assert item["key"] in secret_data(objects, secret["secretName"])
    security = pod["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True and pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_an_operators_secrets_take_the_place_of_the_charts() -> None:
    """As where nothing can be looked up in a cluster: no secret is made, and the pods mount the operator's."""
    theirs = "gateway.existingTlsSecret=cert,gateway.existingSecret=cache,gateway.existingAccessSecret=access"
    objects = charted("minimal", *GATEWAY, "--set", theirs)
    assert not [one for one in objects if one["kind"] == "Secret"]
    found = dict(pods(objects))
    secrets = {
        owner: {volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume}
        for owner, pod in found.items()
    }
    assert secrets["Deployment lpc-caches"] == {"cert", "cache"} and secrets["Deployment lpc-gateway"] == {"access"}
    assert secrets["Deployment lpc-response-cache"] == {"cache"}


def peers(objects: list[Object], name: str, way: str) -> list[tuple[str, list[int | str]]]:
    """The namespaces that a NetworkPolicy names, and the ports."""
    rules = named(objects, "NetworkPolicy", name)["spec"].get("ingress" if way == "from" else "egress") or []
    return [
        (selector["matchLabels"]["kubernetes.io/metadata.name"], [port["port"] for port in rule["ports"]])
        for rule in rules
        for peer in rule.get(way, [])
        if (selector := peer.get("namespaceSelector", {})).get("matchLabels")
    ]


def test_pods_that_call_by_name_may_resolve_names() -> None:
    """The response caches call their Redis by its name; the gateway calls the caches."""
    objects = charted("minimal", *GATEWAY)
    for name in ("lpc-caches", "lpc-gateway"):
        assert ("kube-system", [53, 53]) in peers(objects, name, "to"), name
    for name in ("lpc-caches", "lpc-gateway"):
        found = peers(charted("minimal", *GATEWAY, "--set", "openshift=true"), name, "to")
        assert ("openshift-dns", [5353, 5353]) in found and "kube-system" not in dict(found), name


def test_every_object_has_the_recommended_labels() -> None:
    shared = {"part-of", "managed-by", "version", "instance"}
    for one in charted("everything"):
        assert OWN_LABELS | {f"app.kubernetes.io/{name}" for name in shared} <= set(one["metadata"]["labels"]), one["metadata"]


def test_two_releases_do_not_meet() -> None:
    """Other names, and selectors that find the pods of their own release only."""
    done = helm("template", "other", CHART, "--namespace", "lpc", "--skip-tests", "--values", VALUES["redis-cluster"])
    assert done.returncode == 0, done.stderr
    other = [found for found in yaml.safe_load_all(done.stdout) if found]
    assert not {f"{o['kind']} {o['metadata']['name']}" for o in other} & {*alike(charted("redis-cluster"))}
    labels = [pod["metadata"]["labels"] for _, pod in pods(charted("redis-cluster"))]
    for found in other:
        spec = found.get("spec", {})
        wanted = spec.get("selector") or spec.get("podSelector")
        if wanted and found["kind"] != "Job":
            wanted = wanted.get("matchLabels", wanted)
            assert not any(wanted.items() <= one.items() for one in labels), found["metadata"]["name"]
    names = {o["metadata"]["name"] for o in other}
    for owner, pod in pods(other):
        for container in containers(pod):
            for entry in container.get("env", []):
                if "secretKeyRef" in entry.get("valueFrom", {}):
                    assert entry["valueFrom"]["secretKeyRef"]["name"] in names, owner
            assert "lpc-redis" not in json.dumps(container), owner


def test_rules_and_dashboard_are_those_of_the_repository_and_are_in_it_once() -> None:
    objects = charted("everything")
    rules = named(objects, "PrometheusRule", "lpc")
    repository = (ROOT / "deploy/prometheus/rules.yml").read_text()
    runbook = "https://wiki.example/lpc/runbook"
    assert rules["spec"] == yaml.safe_load(repository.replace("docs/how-to/runbook.md", runbook)) and runbook in str(rules)
    dashboard = named(objects, "ConfigMap", "lpc-dashboard")
    folder = ROOT / "deploy/grafana/dashboards"
    assert dashboard["data"] == {path.name: path.read_text() for path in folder.iterdir()}
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    monitors = [o for o in objects if o["kind"] in OPERATORS]
    assert {o["metadata"]["name"] for o in monitors} == {"lpc", "lpc-predictor", "lpc-engines"}
    assert all(o["metadata"]["labels"]["release"] == "kube-prometheus-stack" for o in monitors)
    assert all(path.is_symlink() and path.resolve().is_relative_to(ROOT / "deploy") for path in (CHART / "files").iterdir())
