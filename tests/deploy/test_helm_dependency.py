"""The chart inside another chart, twice in one chart, under odd release names, and with another release in its namespace."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, VALUES, Object, charted, helm
from tests.deploy.test_kubernetes import pods

NAME = "learned-prefix-cache"
OWN = re.compile(r"lpc-(predictor|redis|redis-form|gateway|gateway-warm|caches|response-cache|trainer)")
"""Names of the chart's own pods, as `app.kubernetes.io/name`."""
INSTANCE = "app.kubernetes.io/instance"
LONGEST = {"CronJob": 52, "Service": 63, "StatefulSet": 52}
"""Characters in a name; what Kubernetes makes of it has to fit, too. Others: 253."""


def umbrella(folder: Path, values: Object, *dependencies: Object) -> Path:
    """Write a chart that depends on this one."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    common = {"name": NAME, "version": version, "repository": f"file://{CHART}"}
    chart = {"apiVersion": "v2", "name": "llm", "version": "1.0.0", "dependencies": [common | one for one in dependencies]}
    folder.mkdir()
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("dependency", "update", folder)
    assert done.returncode == 0, done.stderr
    return folder


def objects(release: str, chart: Path, *arguments: str | Path) -> list[Object]:
    done = helm("template", release, chart, "--namespace", "lpc", "--skip-tests", *arguments)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def everything() -> Object:
    found: Object = yaml.safe_load(VALUES["everything"].read_text())
    return found


def selectors(value: Any) -> list[dict[str, str]]:
    """Return all labels by which something selects pods."""
    if isinstance(value, list):
        return [found for one in value for found in selectors(one)]
    if not isinstance(value, dict):
        return []
    own = [value["matchLabels"]] if "matchLabels" in value else []
    return own + [found for one in value.values() for found in selectors(one)]


def selected(one: Object) -> list[dict[str, str]]:
    service = [one["spec"]["selector"]] if one["kind"] == "Service" else []
    return [labels for labels in [*service, *selectors(one)] if OWN.fullmatch(labels.get("app.kubernetes.io/name", ""))]


def do_not_meet(one: list[Object], other: list[Object]) -> None:
    """Assert that names differ, and that no selector of the one finds a pod of the other."""
    assert one and other
    assert not {(o["kind"], o["metadata"]["name"]) for o in one} & {(o["kind"], o["metadata"]["name"]) for o in other}
    labels = [pod["metadata"]["labels"] for _, pod in pods(other)]
    wanted = [(o["kind"], found) for o in one for found in selected(o)]
    assert len(wanted) > 5
    assert [each for each in wanted if any(each[1].items() <= pod.items() for pod in labels)] == []


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("condition", [f"{NAME}.enabled", f"{NAME}.enabled,global.caching"])
def test_a_parent_chart_switches_it_by_a_condition(tmp_path: Path, condition: str, enabled: bool) -> None:
    chart = umbrella(tmp_path / "llm", {NAME: {"enabled": enabled}}, {"condition": condition})
    assert bool(objects("prod", chart)) is enabled


@pytest.mark.parametrize("enabled", [True, False])
def test_a_parent_chart_switches_it_by_a_tag(tmp_path: Path, enabled: bool) -> None:
    chart = umbrella(tmp_path / "llm", {"tags": {"caching": enabled}, "global": {"imageRegistry": "r"}}, {"tags": ["caching"]})
    assert bool(objects("prod", chart)) is enabled


def test_inside_another_chart_its_objects_have_names_of_their_own(tmp_path: Path) -> None:
    """The parent may well have a `prod-redis` or a `prod-gateway`."""
    found = objects("prod", umbrella(tmp_path / "llm", {NAME: everything()}, {}))
    assert all(one["metadata"]["name"].startswith(f"prod-{NAME}") for one in found)
    assert len(found) == len(charted("everything"))


def test_two_aliases_in_one_chart_do_not_meet(tmp_path: Path) -> None:
    aliases = ("small", "Large_1")
    values = dict.fromkeys(aliases, everything())
    found = objects("prod", umbrella(tmp_path / "llm", values, *({"alias": alias} for alias in aliases)))
    names = {(one["kind"], one["metadata"]["name"]) for one in found}
    assert len(names) == len(found) == 2 * len(charted("everything"))
    small = [one for one in found if one["metadata"]["name"].startswith("prod-small")]
    do_not_meet(small, [one for one in found if one not in small])
    do_not_meet([one for one in found if one not in small], small)


@pytest.mark.parametrize("values", sorted(VALUES))
def test_two_releases_in_one_namespace_do_not_meet(values: str) -> None:
    """Their NetworkPolicies included: the gateway of the one may not call the response caches of the other."""
    if values != "minimal":
        found = {name: objects(name, CHART, "--values", VALUES[values]) for name in ("one", "other")}
        do_not_meet(found["one"], found["other"])


def test_peers_that_a_user_names_stay_as_they_are() -> None:
    """They may be of another release, or of the pages' LMCache."""
    peers = [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "lpc-lmcache"}}},
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "lpc-gateway", INSTANCE: "other"}}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "lpc-gateway"}}},
    ]
    found = objects("lpc", CHART, "--set-json", f"networkPolicy.clients={json.dumps(peers)}")
    (policy,) = [one for one in found if one["kind"] == "NetworkPolicy"]
    assert policy["spec"]["ingress"][0]["from"][1:] == peers


@pytest.mark.parametrize(
    ("release", "values", "prefix"),
    [
        ("lpc", {}, "lpc"),
        ("prod", {"nameOverride": "cache"}, "prod-cache"),
        ("prod", {"fullnameOverride": "cache"}, "cache"),
        ("prod", {"fullnameOverride": "cache", "nameOverride": "x"}, "cache"),
        ("1st", {}, "lpc-1st-e01ddf65"),
    ],
)
def test_names_follow_the_release_and_the_overrides(release: str, values: Object, prefix: str) -> None:
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    found = objects(release, CHART, "--values", VALUES["everything"], *settings)
    assert all(one["metadata"]["name"].partition(prefix)[0] == "" for one in found)
    assert {one["metadata"]["name"] for one in found} == {
        one["metadata"]["name"].replace("lpc", prefix, 1) for one in charted("everything")
    }
    text = json.dumps([one for one in found if one["kind"] != "PrometheusRule"])
    assert f"{prefix}-predictor-headless.lpc.svc" in text


@pytest.mark.parametrize("release", ["r" * 53, "a." * 26 + "a", "9" * 53, "r" * 39 + "-" + "r" * 13, "true"])
@pytest.mark.parametrize("values", ["everything", "redis-cluster"])
def test_a_release_name_of_53_characters_fits(release: str, values: str) -> None:
    found = objects(release, CHART, "--values", VALUES[values], "--set", "gateway.warm.enabled=true")
    for one in found:
        name = one["metadata"]["name"]
        assert len(name) <= LONGEST.get(one["kind"], 63), name
        assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name), name
        assert all(len(value) <= 63 for value in one["metadata"]["labels"].values())


@pytest.mark.parametrize(
    ("one", "other"), [("r" * 52 + "a", "r" * 52 + "b"), ("a.b", "a-b"), ("r" * 39, "r" * 40), ("1st", "lpc-1st")]
)
def test_releases_of_similar_names_do_not_meet(one: str, other: str) -> None:
    values = ("--values", VALUES["everything"])
    do_not_meet(objects(one, CHART, *values), objects(other, CHART, *values))


def test_common_labels_are_on_all_objects_and_pods_and_in_no_selector() -> None:
    found = objects("lpc", CHART, "--values", VALUES["everything"], "--set", "commonLabels.team=llm")
    assert [one for one in found if one["metadata"]["labels"].get("team") != "llm"] == []
    assert [owner for owner, pod in pods(found) if pod["metadata"]["labels"].get("team") != "llm"] == []
    assert [one for one in found if any("team" in labels for labels in selected(one))] == []


@pytest.mark.parametrize("value", ["commonLabels", "podLabels"])
def test_labels_that_the_chart_sets_are_refused(value: str) -> None:
    done = helm("template", "lpc", CHART, "--set-json", f'{value}={{"app.kubernetes.io/name":"x"}}')
    assert done.returncode != 0 and f"/{value}" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["UPPER", "a_b", "-a", "a" * 54])
def test_an_override_that_cannot_be_a_name_is_refused(name: str) -> None:
    done = helm("template", "lpc", CHART, "--set", f"fullnameOverride={name}")
    assert done.returncode != 0 and "/fullnameOverride" in done.stderr, done.stderr
