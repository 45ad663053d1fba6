"""The files of vLLM's tokenizer are found in its folder or in the hub's cache, without a download."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from eviction_client.engines.vllm.scheduler import finder_of
from eviction_client.transport.tokenizer_upload import NoTokenizer, hash_files
from lpc_apps.tiny_llama import build


def config(source: Path | str, revision: str | None = None, download_dir: Path | None = None) -> SimpleNamespace:
    model = SimpleNamespace(tokenizer=str(source), tokenizer_revision=revision)
    return SimpleNamespace(model_config=model, load_config=SimpleNamespace(download_dir=download_dir and str(download_dir)))


def test_in_a_folder_only_the_tokenizers_files_are_found(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    assert hash_files(finder_of(config(folder))()).paths.keys() == {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("revision", [None, "main", "c0ffee"])
def test_in_the_hubs_cache_the_loaded_revision_is_found(tmp_path: Path, revision: str | None) -> None:
    cached = tmp_path / "models--some--model"
    folder = build(cached / "snapshots" / "c0ffee")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("c0ffee")
    found = hash_files(finder_of(config("some/model", revision, tmp_path))())
    assert found.digest == hash_files(finder_of(config(folder))()).digest
    with pytest.raises(NoTokenizer, match="neither a folder nor in this machine's cache"):
        finder_of(config("some/model", "another", tmp_path))()


def test_a_file_of_weights_is_not_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(NoTokenizer, match="is a file"):
        finder_of(config(tmp_path / "model.gguf"))()
    (tmp_path / "mistral").mkdir()
    (tmp_path / "mistral" / "tekken.json").write_text("{}")
    with pytest.raises(NoTokenizer, match=r"has no tokenizer\.json"):
        hash_files(finder_of(config(tmp_path / "mistral"))())
