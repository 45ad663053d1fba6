"""Which version is served, by promotion and age; listing, promoting, rolling back, removing. On folders of real artefacts."""

import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc.errors import ArtifactError
from lpc.files import owned
from lpc.model.artifact import read_manifest
from lpc.model.session import InferenceSettings
from lpc.model.versions import (
    PROMOTED,
    Promotion,
    promote,
    prune,
    read_promotion,
    rollback,
    served_folder,
    unpin,
    write_promotion,
)
from lpc_cli.cli import app
from predictor_service.repository import ModelRepository
from tests.eventually import patiently
from tests.full_disk import fill

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
    assert served_folder(folder).name == "v3"
    promote(folder, "v1")
    assert served_folder(folder).name == ModelRepository(root, "tiny", CPU).load_newest().manifest.version == "v1"
    assert unpin(folder)
    assert served_folder(folder).name == ModelRepository(root, "tiny", CPU).load_newest().manifest.version == "v3"
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


UNREADABLE = [
    *("{", "[]", '{"version": "../v1", "before": []}', '{"version": 3, "before": []}', "", "\x00" * 64),
    *(
        '{"version": "v2", "before": "v1"}',
        '{"version": "v2", "before": {}}',
        '{"version": "v2", "before": [], "rolled_back": "v3"}',
    ),
    '{"version": "v2", "before": [], "rolled_back": {"v3": 1}}',
    '{"version": "v2", "before": [], "rolled_bacK": ["v3"]}',
]


@pytest.mark.parametrize("content", ['{"version": "none", "before": []}', *UNREADABLE])
def test_a_bad_promotion_changes_nothing_in_a_running_sidecar(root: Path, content: str) -> None:
    repository = ModelRepository(root, "tiny", CPU)
    current = read_manifest(root / "tiny" / "v1")
    (root / "tiny" / PROMOTED).write_text(content)
    with pytest.raises(ArtifactError):
        repository.load_newer(current)
    assert repository.load_newer(current) is None
    # Promoting again repairs it.
    promote(root / "tiny", "v2")
    assert served_folder(root / "tiny").name == "v2"
    model = repository.load_newer(current)
    assert model is not None and model.manifest.version == "v2"


@pytest.mark.parametrize("content", UNREADABLE)
def test_a_sidecar_does_not_start_with_a_promotion_that_it_cannot_read(root: Path, content: str) -> None:
    """It could otherwise serve the newest version, from which the operator has rolled back."""
    rollback(root / "tiny")
    (root / "tiny" / PROMOTED).write_text(content)
    with pytest.raises(ArtifactError, match="lpc models promote"):
        ModelRepository(root, "tiny", CPU).load_newest()
    assert lpc(root, "unpin")[0] == 0
    assert ModelRepository(root, "tiny", CPU).load_newest().manifest.version == "v3"


def test_a_version_that_was_rolled_back_is_not_served_in_place_of_a_damaged_one(
    root: Path, tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = root / "tiny"
    assert rollback(folder) == ("v3", "v2")
    (folder / "v2" / "manifest.json").write_text("{")
    starting = ModelRepository(root, "tiny", CPU)
    assert served_folder(folder).name == starting.load_newest().manifest.version == "v1"
    assert "v2 is not served" in caplog.text
    # Neither does a newer version that nobody has rolled back stay away, nor one that is promoted again.
    add(tiny_models, root, 4)
    assert served_folder(folder).name == "v4"
    promote(folder, "v3")
    assert served_folder(folder).name == "v3"
    assert read_promotion(folder) == Promotion("v3", ("v4",))


def test_no_damage_outside_the_names_lets_a_rolled_back_version_in(root: Path) -> None:
    folder = root / "tiny"
    rollback(folder)
    good = (folder / PROMOTED).read_bytes()
    assert good.count(b"v3") == good.count(b"v2") == 1
    in_names = {place for name in (b"v2", b"v3") for place in range(good.index(name), good.index(name) + len(name))}
    changed = [
        content
        for at in range(len(good))
        if at not in in_names
        for content in (
            good[:at],
            good[:at] + good[at + 1 :],
            *(good[:at] + bytes([byte]) + good[at + 1 :] for byte in range(256)),
        )
    ]
    read = 0
    for content in changed:
        (folder / PROMOTED).write_bytes(content)
        try:
            promotion = read_promotion(folder)
        except ArtifactError:
            continue
        read += 1
        assert promotion is not None and promotion.rolled_back == ("v3",), content
    assert 0 < read < len(changed)  # blanks may change


def test_without_another_version_a_rolled_back_one_is_refused(root: Path) -> None:
    folder = root / "tiny"
    assert [rollback(folder), rollback(folder)] == [("v3", "v2"), ("v2", "v1")]
    (folder / "v1" / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError):
        ModelRepository(root, "tiny", CPU).load_newest()


def promote_often(folder: Path, version: str, times: int) -> None:
    for _ in range(times):
        promote(folder, version)
        rollback(folder)


def test_processes_that_promote_and_roll_back_at_once_lose_nothing(root: Path) -> None:
    """Each changes the file from what it has read: without a lock one undoes the other's change in between."""
    folder = root / "tiny"
    write_promotion(folder, Promotion("v1", ("v2",)))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=promote_often, args=(folder, "v3", 10)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(patiently())
    assert [process.exitcode for process in processes] == [0, 0]
    found = read_promotion(folder)
    assert found is not None
    assert {found.version, *found.before, *found.rolled_back} <= {"v1", "v2", "v3"} and found.version in ("v1", "v2")


def test_a_promotion_is_on_the_disk_before_it_replaces_the_old_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, done = root / "tiny", []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        done.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name.split(".json")[0]))
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        done.append(("replace", target.name))
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    promote(folder, "v1")
    assert done == [("sync", ".promoted"), ("replace", PROMOTED), ("sync", "tiny")]


def test_a_promotion_in_place_of_another_version_than_the_served_one_changes_nothing(root: Path) -> None:
    folder = root / "tiny"
    rollback(folder)
    with pytest.raises(ArtifactError, match="v2 is served, not v3"):
        promote(folder, "v1", instead_of="v3")
    assert served_folder(folder).name == "v2"
    promote(folder, "v1", instead_of="v2")
    assert served_folder(folder).name == "v1"


def test_remains_of_killed_writers_are_removed_at_the_next_promotion(root: Path) -> None:
    folder = root / "tiny"
    for name, age in (
        (f".{PROMOTED}.0123456789abcdef", 3600),
        (f".{PROMOTED}.1123456789abcdef", 10),
        (".mine.0123456789abcdef", 3600),
    ):
        (folder / name).write_text("{")
        os.utime(folder / name, (time.time() - age,) * 2)
    promote(folder, "v1")
    left = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert left == {f".{PROMOTED}.1123456789abcdef", ".mine.0123456789abcdef", f".{PROMOTED}.lock"}


def test_rolling_back_goes_to_what_was_served_before_and_never_to_what_was_rolled_back(root: Path, tiny_models: Path) -> None:
    folder = root / "tiny"
    assert rollback(folder) == ("v3", "v2")
    add(tiny_models, root, 4)
    promote(folder, "v4")
    assert read_promotion(folder) == Promotion("v4", ("v2",), ("v3",))
    assert rollback(folder) == ("v4", "v2")
    assert rollback(folder) == ("v2", "v1")
    with pytest.raises(ArtifactError, match="no valid version older than v1"):
        rollback(folder)
    assert read_promotion(folder) == Promotion("v1", (), ("v3", "v4", "v2"))


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
    assert sorted(path.name for path in folder.iterdir()) == [f".{PROMOTED}.lock", ".v9-abc", "copying", "v4"]


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


def test_pruning_leaves_the_scratch_folder_of_an_export_at_work_whatever_the_clock_says(root: Path) -> None:
    folder = root / "tiny"
    for name, days in (("at-work", -9), ("left", -9), ("from-the-future", 400), ("young", 0)):
        (folder / f".{name}").mkdir()
        os.utime(folder / f".{name}", (time.time() + days * 86_400,) * 2)
    with owned(folder / ".at-work"):
        assert sorted(prune(folder, 5)) == [".from-the-future", ".left"]
    assert {".at-work", ".young"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("command", [["promote", "v1"], ["rollback"]], ids=lambda words: words[0])
def test_on_a_full_disk_the_promotion_is_as_before_and_the_error_names_the_file(
    tiny_models: Path, root: Path, small_disk: Path, command: list[str]
) -> None:
    promote(root / "tiny", "v2")
    promote(root / "tiny", "v3")
    for version in ("v1", "v2", "v3"):
        (small_disk / "tiny").mkdir(exist_ok=True)
        (small_disk / "tiny" / version).symlink_to(root / "tiny" / version)
    before = (root / "tiny" / PROMOTED).read_bytes()
    place = small_disk / "tiny" / PROMOTED
    place.write_bytes(before)
    ballast = fill(small_disk)
    code, said = lpc(small_disk, *command)
    assert code == 1 and said == f"lpc: {place}: No space left on device: free space there, then run it again"
    assert place.read_bytes() == before and served_folder(small_disk / "tiny").name == "v3"
    ballast.unlink()
    assert lpc(small_disk, *command)[0] == 0 and served_folder(small_disk / "tiny").name != "v3"
