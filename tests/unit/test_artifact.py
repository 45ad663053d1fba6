"""A damaged artefact is named, file by file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lpc.errors import ArtifactError
from lpc.model.artifact import read_manifest, verify


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
