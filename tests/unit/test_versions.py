"""Which version is served, by promotion and age; listing, promoting, rolling back, removing. On folders of real artefacts."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc.errors import ArtifactError
from lpc.model.artifact import read_manifest
from lpc.model.session import InferenceSettings
from lpc.model.versions import PROMOTED, Promotion, promote, prune, read_promotion, rollback, served, unpin
from lpc_apps.commands.cli import app
from predictor_service.repository import ModelRepository

CPU = InferenceSettings("cpu", 1)


@pytest.fixture
def root(tiny_models: Path, tmp_path: Path) -> Path:
    """Three versions, v3 the newest."""
    for number in (1, 2, 3):
        add(tiny_models, tmp_path, number)
    return tmp_path


def add(tiny_models: Path, root: Path, number: int) -> None:
    folder = root / "tiny" / f"v{number}"
    shutil.copytree(tiny_models / "tiny" / "v1", folder)
    path = folder / "manifest.json"
    values = json.loads(path.read_text()) | {"version": folder.name, "created": f"2026-11-0{number}T00:00:00+00:00"}
    path.write_text(json.dumps(values))


def lpc(root: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["models", *arguments, "--models", str(root), "--model", "tiny"])
    return done.exit_code, " ".join((done.stderr if done.exit_code else done.stdout).split())


def test_the_newest_is_served_until_another_is_promoted_and_after_it_is_unpinned(root: Path) -> None:
    folder = root / "tiny"
    assert served(folder).name == "v3"
    promote(folder, "v1")
    assert served(folder).name == ModelRepository(root, "tiny", CPU).load_newest().manifest.version == "v1"
    assert unpin(folder)
    assert served(folder).name == ModelRepository(root, "tiny", CPU).load_newest().manifest.version == "v3"
    assert not unpin(folder)


def test_a_repository_follows_promotions_both_ways_and_loads_nothing_twice(root: Path) -> None:
    repository = ModelRepository(root, "tiny", CPU)
    current = repository.load_newest().manifest
    assert repository.load_newer(current) is None
    for version in ("v1", "v2"):
        promote(root / "tiny", version)
        model = repository.load_newer(current)
        assert model is not None and model.manifest.version == version
        current = model.manifest
        assert repository.load_newer(current) is None
    unpin(root / "tiny")
    model = repository.load_newer(current)
    assert model is not None and model.manifest.version == "v3"


@pytest.mark.parametrize(
    "content",
    ['{"version": "none", "before": []}', "{", "[]", '{"version": "../v1", "before": []}', '{"version": 3, "before": []}'],
)
def test_a_promotion_that_cannot_be_followed_fails_once_and_a_start_takes_the_newest(
    root: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    repository = ModelRepository(root, "tiny", CPU)
    current = read_manifest(root / "tiny" / "v1")
    (root / "tiny" / PROMOTED).write_text(content)
    with pytest.raises(ArtifactError):
        repository.load_newer(current)
    assert repository.load_newer(current) is None
    starting = ModelRepository(root, "tiny", CPU)
    assert starting.load_newest().manifest.version == "v3"
    assert "is ignored" in caplog.text or "is not served" in caplog.text
    assert starting.load_newer(read_manifest(root / "tiny" / "v3")) is None
    # Promoting again mends it.
    promote(root / "tiny", "v2")
    assert served(root / "tiny").name == "v2"
    model = starting.load_newer(current)
    assert model is not None and model.manifest.version == "v2"


def test_rolling_back_goes_to_what_was_served_before_and_never_to_what_was_rolled_back(root: Path, tiny_models: Path) -> None:
    folder = root / "tiny"
    assert rollback(folder) == ("v3", "v2")
    add(tiny_models, root, 4)
    promote(folder, "v4")
    assert read_promotion(folder) == Promotion("v4", ("v2",))
    assert rollback(folder) == ("v4", "v2")
    assert rollback(folder) == ("v2", "v1")
    with pytest.raises(ArtifactError, match="no valid version older than v1"):
        rollback(folder)
    assert read_promotion(folder) == Promotion("v1")


def test_pruning_keeps_the_newest_the_served_and_those_before(root: Path, tiny_models: Path) -> None:
    folder = root / "tiny"
    promote(folder, "v2")
    promote(folder, "v1")
    add(tiny_models, root, 4)
    (folder / "copying").mkdir()
    (folder / ".v9-abc").mkdir()
    (folder / ".v8-abc").mkdir()
    os.utime(folder / ".v8-abc", (time.time() - 90_000,) * 2)
    assert sorted(prune(folder, 1)) == [".v8-abc"]
    assert unpin(folder)
    assert sorted(prune(folder, 1)) == ["v1", "v2", "v3"]
    assert sorted(path.name for path in folder.iterdir()) == [".v9-abc", "copying", "v4"]


def test_the_list_says_what_is_served_promoted_and_broken(root: Path) -> None:
    (root / "tiny" / "v3" / "tokenizer.json").write_text("{}")
    (root / "tiny" / "v0").mkdir()
    promote(root / "tiny", "v1")
    code, table = lpc(root, "list")
    assert code == 0
    assert "served, promoted" in table
    assert "broken:" in table
    code, said = lpc(root, "list", "--json")
    found = json.loads(said)
    assert (code, found["served"], found["promoted"], found["note"]) == (0, "v1", "v1", None)
    assert [row["version"] for row in found["versions"]] == ["v3", "v2", "v1", "v0"]
    assert "tokenizer.json has SHA-256" in found["versions"][0]["problem"]
    assert "manifest.json is missing" in found["versions"][3]["problem"]
    assert len(found["versions"][2]["head"]) == 64
    (root / "tiny" / "v1" / "model.onnx").unlink()
    found = json.loads(lpc(root, "list", "--json")[1])
    assert found["served"] == "v2"
    assert "v1 is promoted but cannot be served" in found["note"]


def test_the_commands_say_what_they_did_and_what_is_wrong(root: Path) -> None:
    assert "v1 is promoted" in lpc(root, "promote", "v1")[1]
    assert lpc(root, "promote", "v7") == (1, f"lpc: {root / 'tiny'} has no version v7: there are v3, v2, v1")
    assert "v3 is promoted in place of v1" in lpc(root, "rollback")[1]
    assert "sidecars serve the newest version, v3" in lpc(root, "unpin")[1]
    assert "nothing was promoted" in lpc(root, "unpin")[1]
    assert "removed 2: v2, v1" in lpc(root, "prune", "--keep", "1")[1]
    assert lpc(root, "prune", "--keep", "1")[1] == "nothing to remove"
    code, said = lpc(root / "none", "list")
    assert (code, "no model in" in said) == (1, True)
