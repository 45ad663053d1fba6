"""Renders the Helm chart as `helm` does, and brings its objects and kustomize's to a form in which they can be compared."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.dockerfile import ROOT

CHART = ROOT / "deploy/helm/learned-prefix-cache"
VALUES = {path.name.removesuffix("-values.yaml"): path for path in (CHART / "ci").iterdir()}
"""Sets of values by name; those of an overlay's name say the same as the overlay."""
OF_THE_CHART = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}
"""Labels that charts have and the kustomize base has not."""
RANDOM = {"lpc-caches-tls", "lpc-response-cache", "lpc-gateway-access"}
"""Secrets that are made where they are rendered: kustomize takes them from `lpc secrets`, the chart makes its own."""
OF_THE_CHART_ALONE = {"Secret lpc-gateway-clients"}
"""The tokens of the gateway's clients, which `lpc secrets` leaves in a folder."""
Object = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm, without what it says of the links in the chart."""
    program = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "helm is needed by the tests: make deploy-tools"
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if "found symbolic link" not in line)
    return done


@cache
def charted(values: str, *arguments: str) -> list[Object]:
    """Return the objects of the release `lpc` in the namespace of that name."""
    done = helm("template", "lpc", CHART, "--namespace", "lpc", "--skip-tests", "--values", VALUES[values], *arguments)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def alike(objects: list[Object]) -> dict[str, Object]:
    """Return objects by kind and name, without what charts and kustomizations must differ in."""
    found = {}
    for one in objects:
        if one["kind"] != "Namespace":
            kept = plain(json.loads(json.dumps(one)))
            kept["metadata"].pop("namespace", None)
            if kept["kind"] == "Secret":
                data = {key: base64.b64decode(value).decode() for key, value in kept.pop("data", {}).items()}
                kept["stringData"] = data | kept.get("stringData", {})
                if kept["metadata"]["name"] in RANDOM:
                    kept["stringData"] = dict.fromkeys(kept["stringData"], "")
            found[f"{kept['kind']} {kept['metadata']['name']}"] = kept
    return found


def plain(value: Any) -> Any:
    """Drop the chart's labels and checksums, kustomize's hashes in names, what is empty, and the order of named things."""
    if isinstance(value, dict):
        kept = {key: plain(one) for key, one in value.items() if key not in OF_THE_CHART and not key.startswith("checksum/")}
        return {key: one for key, one in kept.items() if one != {} or key in {"emptyDir", "namespaceSelector", "podSelector"}}
    if isinstance(value, list):
        items = [plain(one) for one in value]
        return (
            items
            if any(isinstance(one, str) for one in items)
            else sorted(items, key=lambda one: json.dumps(one, sort_keys=True))
        )
    if isinstance(value, str):
        return re.sub(r"^(lpc-predictor|lpc-gateway|lpc-caches|lpc-redis-config|lpc-redis-form)-[a-z0-9]{10}$", r"\1", value)
    return value
