"""What `make release` publishes: the chart, the rules and the images' labels."""

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy import release
from tests.deploy.chart import CHART, VALUES, charted, helm
from tests.dockerfile import ROOT, stages

REPOSITORY = "https://git.example/lpc"


def packaged(folder: Path, repository: str, time: int) -> Path:
    folder.mkdir()
    release.chart(folder, repository, time)
    (made,) = folder.iterdir()
    return made


def test_the_packaged_chart_has_the_same_bytes_and_renders_the_same_objects(tmp_path: Path) -> None:
    first, second = (packaged(tmp_path / name, "", 1_700_000_000) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    done = helm("template", "lpc", first, "--namespace", "lpc", "--skip-tests", "--values", VALUES["everything"])
    assert done.returncode == 0, done.stderr
    assert [found for found in yaml.safe_load_all(done.stdout) if found] == charted("everything")
    with tarfile.open(first) as package:
        names = {entry.name.removeprefix(f"{CHART.name}/") for entry in package}
        assert {entry.mtime for entry in package} == {1_700_000_000}
    assert {"README.md", "Chart.yaml", "files/prometheus/rules.yml"} <= names
    assert not [name for name in names if re.search(r"kustomization\.yaml|redis\.env|rules_test|^ci/", name)]


def test_the_repositorys_address_reaches_chart_rules_and_images(tmp_path: Path) -> None:
    with tarfile.open(packaged(tmp_path / "chart", REPOSITORY, 0)) as package:
        about, values = (package.extractfile(f"{CHART.name}/{name}.yaml") for name in ("Chart", "values"))
        assert about is not None and values is not None
        chart, defaults = yaml.safe_load(about.read()), yaml.safe_load(values.read())
    assert (chart["home"], chart["sources"]) == (REPOSITORY, [REPOSITORY])
    assert defaults["monitors"]["runbook"] == f"{REPOSITORY}/blob/main/docs/how-to/runbook.md"
    groups = yaml.safe_load(release.rules(REPOSITORY))["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert urls and all(url.startswith(f"{REPOSITORY}/blob/main/docs/how-to/runbook.md#lpc") for url in urls)
    arguments = set(re.findall(r"--build-arg (\w+)=", release.labelled("1.2.3", REPOSITORY)))
    assert arguments >= {"SOURCE", "DOCUMENTATION"}
    for target in ("cpu", "gpu", "trainer", "engine"):
        stage = stages()[1][target]
        assert arguments <= {line.partition("=")[0] for line in stage.texts("ARG")}, target
        label = " ".join(stage.texts("LABEL"))
        assert 'image.source="${SOURCE}"' in label and 'image.documentation="${DOCUMENTATION}"' in label, target


def test_the_documented_command_sets_the_address_of_the_runbook() -> None:
    text = (ROOT / "docs/how-to/runbook.md").read_text()
    (command,) = re.findall(r"(?m)^    (sed .*) > rules\.yml$", text)
    changed = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    urls = re.findall(r"runbook_url: (\S+)", changed)
    assert urls and all(url.startswith("https://wiki.example/lpc/runbook#lpc") for url in urls)


def leaves(value: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, found in value.items():
        if isinstance(found, dict) and found:
            yield from leaves(found, f"{at}{key}.")
        else:
            yield at + key, found


def test_the_charts_readme_lists_every_value_with_its_default() -> None:
    table = re.findall(r"(?m)^\| `(\S+)` \| `(.*)` \|$", (CHART / "README.md").read_text())
    expected = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert {name: json.loads(default) for name, default in table} == expected
