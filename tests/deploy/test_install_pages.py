"""docs/how-to/install: what the pages tell people to write is YAML, valid values of the chart, and names that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from eviction_client.settings import ClientSettings
from lpc_apps.lmcache.settings import LMCacheSettings
from predictor_service.settings import ServiceSettings
from tests.deploy.chart import CHART, charted, helm
from tests.deploy.test_kubernetes import named
from tests.dockerfile import ROOT, stages

PAGES = {path.name: path.read_text() for path in (ROOT / "docs/how-to/install").iterdir()}
BLOCKS = [(name, block) for name, text in PAGES.items() for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", text)]
VALUES = [(name, block) for name, block in BLOCKS if block.startswith("# values of learned-prefix-cache\n")]
SCHEDULER = "eviction_client.engines.vllm.LearnedScheduler"
VLLM = ROOT / ".venv-engine/lib/python3.11/site-packages/vllm"


def words(value: Any) -> list[str]:
    """Return the strings in what was read of YAML, at any depth."""
    if isinstance(value, dict):
        return [word for key, one in value.items() for word in [str(key), *words(one)]]
    return [word for one in value for word in words(one)] if isinstance(value, list) else [str(value)]


@pytest.mark.parametrize("name", PAGES)
def test_links_targets_and_settings_exist(name: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[name]):
        assert (ROOT / "docs/how-to/install" / link).exists(), link
    known = {f"LPC_{field.upper()}" for settings in (ServiceSettings, ClientSettings) for field in settings.model_fields}
    known |= {f"LPC_LMCACHE_{field.upper()}" for field in LMCacheSettings.model_fields}
    assert set(re.findall(r"\bLPC_[A-Z_]+\b", PAGES[name])) <= known
    assert set(re.findall(r"--target (\S+)", PAGES[name])) <= set(stages()[1])
    assert set(re.findall(r"--build-arg (\w+)", PAGES[name])) <= set(stages()[0])


@pytest.mark.parametrize(("name", "block"), BLOCKS)
def test_engines_are_told_what_the_plug_in_and_the_sidecar_are_called(name: str, block: str) -> None:
    assert set(re.findall(r"--scheduler-cls[= ]([\w.]+)", block)) <= {SCHEDULER}
    engine = named(charted("cpu"), "ConfigMap", "lpc-engine")
    environment = dict(re.findall(r'name: (\w+), value: "([^"]*)"', block))
    assert {key: value for key, value in environment.items() if key in engine["data"]}.items() <= engine["data"].items()
    assert set(re.findall(r"configMapRef: \{name: ([\w-]+)", block)) <= {engine["metadata"]["name"]}
    assert set(re.findall(r"learned-prefix-cache\.io(?:/|~1)([\w./-]*)", block)) <= {"client", "lmcache"}
    assert not {word for word in words(yaml.safe_load(block)) if word.startswith("lpc.")}


@pytest.mark.skipif(not VLLM.exists(), reason="vLLM is installed by `make engine`")
def test_every_flag_of_vllm_exists() -> None:
    sources = "".join(path.read_text() for path in (VLLM / "engine/arg_utils.py", *(VLLM / "entrypoints").rglob("cli_args.py")))
    flags = {flag for _, block in BLOCKS for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", block) if flag[:3] != "no-"}
    assert "scheduler-cls" in flags
    for flag in flags:
        assert re.search(rf'"--{flag}"|\b{flag.replace("-", "_")}\b', sources), flag


@pytest.mark.parametrize(("name", "block"), VALUES)
def test_the_charts_values_are_accepted(name: str, block: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(block)
    done = helm("template", "lpc", CHART, "--namespace", "lpc", "--values", values)
    assert done.returncode == 0, done.stderr
