"""A tokenizer without tokenizer.json: every part reports which files were found, and what to do."""

import json
import logging
from pathlib import Path

import pytest

from eviction_client.engines.tokenizer_files import finder
from eviction_client.transport.tokenizer_upload import LogOnce, NoTokenizer, Offer, files_in, hash_files
from lpc.v1 import predictor_pb2
from lpc.wire.tokenizer_files import without_needed
from predictor_service.requests.loading import TokenizerError, TokenizerLoader

KINDS = {
    "tekken": ("tekken.json",),
    "SentencePiece": ("tokenizer.model",),
    "SentencePiece of T5": ("spiece.model",),
    "SentencePiece of Mistral": ("tokenizer.model.v3",),
    "tiktoken": ("tiktoken.model",),
    "tiktoken of Qwen": ("qwen.tiktoken",),
    "both": ("tekken.json", "tokenizer.model.v7"),
    "SentencePiece of a later Mistral": ("tokenizer.model.v15",),
    "SentencePiece of Marian": ("source.spm", "target.spm"),
    "tiktoken of Hunyuan": ("hy.tiktoken",),
    "halves of GPT-2": ("encoder.json", "vocab.bpe"),
    "halves": ("merges.txt", "vocab.json"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def folder_of(kind: str, folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    for name in KINDS[kind]:
        (folder / name).write_bytes(b"not really a vocabulary")
    return folder


def explains(text: str, kind: str) -> bool:
    return f"it has no tokenizer.json, only {', '.join(KINDS[kind])};" in text and "save_pretrained" in text


@kinds
def test_an_engine_names_the_files_that_it_has(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of(kind, tmp_path / "model")
    with pytest.raises(NoTokenizer) as refusal:
        hash_files(finder(str(folder), None, [])())
    assert explains(str(refusal.value), kind)
    offer = Offer("m", finder(str(folder), None, []), LogOnce())
    offer.read_files()
    offer.update(predictor_pb2.TokenizerStatus(state=predictor_pb2.TOKENIZER_STATE_REFUSED, message="none was offered"))
    assert offer.state == "none"
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2 and all(explains(line, kind) and "LPC_SERVED_MODELS" in line for line in lines)


@kinds
def test_an_engine_names_the_files_in_the_hubs_cache(kind: str, tmp_path: Path) -> None:
    cached = tmp_path / "models--some--model"
    (cached / "snapshots").mkdir(parents=True)
    folder_of(kind, cached / "snapshots" / "c0ffee")
    with pytest.raises(NoTokenizer) as refusal:
        hash_files(finder("some/model", "c0ffee", [str(tmp_path)])())
    assert explains(str(refusal.value), kind)


@kinds
def test_the_front_of_lmcache_names_them(kind: str, tmp_path: Path) -> None:
    with pytest.raises(NoTokenizer) as refusal:
        hash_files(files_in(folder_of(kind, tmp_path / "model")))
    assert explains(str(refusal.value), kind)


@pytest.mark.parametrize(("kind", "offered"), [("tekken", True), ("SentencePiece", False), ("tiktoken", True)])
def test_the_sidecar_names_them(kind: str, offered: bool, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as refusal:
        TokenizerLoader().load(str(folder_of(kind, tmp_path / "model")), offered=offered)
    assert explains(str(refusal.value), kind)


@pytest.mark.parametrize("name", ["tokenizer.model.v13", "tokenizer.model.v11m1", "tekken_240911.json", "o200k.tiktoken"])
def test_a_sidecar_names_other_versions_of_these_files(name: str) -> None:
    assert f"only {name};" in without_needed([name, "config.json", "model.safetensors"])


def test_a_folder_without_any_tokenizer_and_one_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(NoTokenizer, match=r"no tokenizer\.json, and no vocabulary in another format"):
        hash_files(finder(str(tmp_path), None, [])())
    with pytest.raises(NoTokenizer, match="neither a folder nor in this machine"):
        finder("some/other", None, [str(tmp_path)])()
