"""A damaged artefact is named, file by file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lpc.errors import ArtifactError
from lpc.model.artifact import file_sha256, read_manifest, verify
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from tests.tiny_model import tiny_think_time


def edit(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "manifest.json"
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    return apply


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder missing": (shutil.rmtree, "no model artefact at"),
    "manifest missing": (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing: the artefact is incomplete"),
    "manifest not JSON": (lambda f: (f / "manifest.json").write_text("{"), "is not a readable manifest"),
    "manifest not UTF-8": (lambda f: (f / "manifest.json").write_bytes(b"\xff"), "is not a readable manifest"),
    "manifest a list": (lambda f: (f / "manifest.json").write_text("[]"), "is not a valid manifest"),
    "another schema": (edit(schema=99), "has schema 99, this service reads 1"),
    "no schema": (edit(schema=None), "lacks the entry 'schema'"),
    "no features": (edit(features=None), "lacks the entry 'features'"),
    "no version": (edit(version=None), "is not a valid manifest"),
    "an unknown feature": (
        edit(features={"prompt_window": 5, "token_budget": 512, "prefix": "", "scalars": ["x"]}),
        "unknown scalar features",
    ),
    "no checksum": (edit(files={}), "has no checksum for model.onnx"),
    "model missing": (lambda f: (f / "model.onnx").unlink(), "cannot read .*model.onnx"),
    "model truncated": (lambda f: (f / "model.onnx").write_bytes(b"x"), "model.onnx has SHA-256"),
    "tokenizer replaced": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json has SHA-256"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(tiny_models: Path, tmp_path: Path, damage: str) -> None:
    apply, why = DAMAGE[damage]
    folder = tmp_path / "v1"
    shutil.copytree(tiny_models / "tiny" / "v1", folder)
    apply(folder)
    with pytest.raises(ArtifactError, match=why) as error:
        verify(folder)
    assert "export" in str(error.value)


def test_a_sound_artefact_says_what_it_is(tiny_models: Path) -> None:
    manifest = verify(tiny_models / "tiny" / "v1")
    assert manifest == read_manifest(tiny_models / "tiny" / "v1")
    assert (manifest.name, manifest.version, manifest.precision, manifest.embedding_width) == ("tiny", "v1", "fp32", 32)
    assert manifest.verification["prompts"] == 24


DAMAGED_TIMES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, r"cannot read .*think_time\.json"),
    "truncated": (lambda f: f.write_bytes(f.read_bytes()[:100]), r"think_time\.json has SHA-256"),
    "replaced": (lambda f: f.write_text("{}"), r"think_time\.json has SHA-256"),
}


@pytest.mark.parametrize("damage", DAMAGED_TIMES)
def test_damaged_think_times_are_named(timed_models: Path, tmp_path: Path, damage: str) -> None:
    apply, why = DAMAGED_TIMES[damage]
    folder = tmp_path / "v1"
    shutil.copytree(timed_models / "tiny" / "v1", folder)
    apply(folder / "think_time.json")
    with pytest.raises(ArtifactError, match=why) as error:
        Model(folder, InferenceSettings("cpu", 1))
    assert "lpc export" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[" * 100_000, b'{"format": "lpc-think-time-1"}'])
def test_think_times_whose_checksum_holds_but_which_are_none_are_refused(
    timed_models: Path, tmp_path: Path, content: bytes
) -> None:
    folder = tmp_path / "v1"
    shutil.copytree(timed_models / "tiny" / "v1", folder)
    (folder / "think_time.json").write_bytes(content)
    files = dict(read_manifest(folder).files) | {"think_time.json": file_sha256(folder / "think_time.json")}
    edit(files=files)(folder)
    with pytest.raises(ArtifactError, match="think-time model") as error:
        Model(folder, InferenceSettings("cpu", 1))
    assert "lpc train-time" in str(error.value)


def test_think_times_are_loaded_if_the_manifest_lists_them(tiny_models: Path, timed_models: Path, tmp_path: Path) -> None:
    with_times = Model(timed_models / "tiny" / "v1", InferenceSettings("cpu", 1))
    assert with_times.think_time is not None
    assert with_times.think_time.to_json() == tiny_think_time().to_json()
    folder = tmp_path / "v1"
    shutil.copytree(tiny_models / "tiny" / "v1", folder)
    tiny_think_time().save(folder / "think_time.json")  # a file that no export put there
    assert Model(folder, InferenceSettings("cpu", 1)).think_time is None
