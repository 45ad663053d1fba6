"""What engines offer is kept whole or not at all, under its digest, within its bound."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import pytest

from eviction_client.offer import hash_files
from lpc.wire.tokenizer_files import digest_of
from predictor_service.requests.offered import MAX_HOURLY, MAX_UPLOADS, OfferedTokenizers, OfferRefused, Receipt

FILES = {"chat_template.jinja": b"{{ messages }}", "tokenizer.json": bytes(range(256)) * 40, "tokenizer_config.json": b"{}"}


def digest(files: dict[str, bytes]) -> str:
    return digest_of({name: sha256(content).hexdigest() for name, content in files.items()})


def begin(store: OfferedTokenizers, files: dict[str, bytes], caller: str = "engine") -> Receipt:
    receipt = store.receive(digest(files), {name: len(content) for name, content in files.items()}, caller)
    assert receipt is not None
    return receipt


def put(store: OfferedTokenizers, files: dict[str, bytes]) -> str:
    assert begin(store, files).write(b"".join(files.values()))
    return digest(files)


def other(n: int) -> dict[str, bytes]:
    return {"tokenizer.json": bytes([n]) * 1000}


def test_files_cut_at_any_position_are_reassembled(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path / "kept", 2**20)
    receipt = begin(store, FILES)
    content = b"".join(FILES.values())
    cuts = [content[i : i + 77] for i in range(0, len(content), 77)]
    assert [receipt.write(cut) for cut in cuts] == [False] * (len(cuts) - 1) + [True]
    folder = store.find(digest(FILES))
    assert folder is not None and store.intact(digest(FILES))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [digest(FILES)]
    assert hash_files({file.name: file for file in folder.iterdir()}).digest == digest(FILES), "both sides count alike"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"../../tokenizer.json": 1}, "any of added_tokens.json, "),
        ({"tokenizer.json": 1, "code.py": 1}, "any of"),
        ({"tokenizer_config.json": 1}, "with tokenizer.json"),
        ({"tokenizer_config.json": 1, "tokenizer.json": 1}, "in this order"),
        ({"tokenizer.json": 2**20 + 1}, "has 1048577 bytes, this sidecar accepts 1048576"),
    ],
)
def test_an_invalid_offer_is_refused(tmp_path: Path, files: dict[str, int], why: str) -> None:
    with pytest.raises(OfferRefused, match=why):
        OfferedTokenizers(tmp_path / "kept", 2**20).receive("0" * 64, files, "engine")
    assert not any((tmp_path / "kept").iterdir())


def test_an_upload_that_differs_from_its_offer_is_discarded(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    content = b"".join(FILES.values())
    for wrong in (content[:-1] + b"x", content + b"x"):
        with pytest.raises(OfferRefused):
            begin(store, FILES).write(wrong)
        assert not list(tmp_path.iterdir()) and not store.receives(digest(FILES))
    begin(store, FILES).abandon()
    assert not list(tmp_path.iterdir())


def test_a_digest_cannot_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "secret").mkdir()
    store = OfferedTokenizers(tmp_path / "kept", 2**20)
    assert store.find("../secret") is None
    with pytest.raises(OfferRefused, match="64 hexadecimal digits"):
        store.receive("../secret", {"tokenizer.json": 1}, "engine")


def test_the_least_recently_used_tokenizers_are_removed(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 3500)
    digests = [put(store, other(n)) for n in range(3)]
    for age, known in zip((30, 20, 10), digests, strict=True):
        os.utime(tmp_path / known, (time.time() - age,) * 2)
    assert store.find(digests[0]) is not None
    newest = put(store, other(9))
    assert {path.name for path in tmp_path.iterdir()} == {digests[0], digests[2], newest}


def test_a_stalled_upload_releases_its_reservation(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 1500)
    begin(store, other(1), "hostile")
    with pytest.raises(OfferRefused, match="being received"):
        begin(store, other(2))
    now = itertools.count(time.monotonic() + 60)
    with patch("predictor_service.requests.offered.time.monotonic", lambda: next(now)):
        assert not store.receives(digest(other(1))), "other engines with this tokenizer are asked for it"
        assert put(store, other(2))


def test_one_caller_cannot_block_the_uploads_of_others(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    for n in range(MAX_UPLOADS):
        begin(store, other(n), "hostile")
    with pytest.raises(OfferRefused, match="client hostile is already sending 4 tokenizers"):
        begin(store, other(9), "hostile")
    put(store, other(9))


def test_one_caller_sends_a_bounded_number_of_tokenizers_per_hour(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    for n in range(MAX_HOURLY):
        begin(store, other(n), "hostile").abandon()
    with pytest.raises(OfferRefused, match="client hostile has sent 32 tokenizers within an hour"):
        begin(store, other(99), "hostile")
    put(store, other(100))
    later = time.monotonic() + 3601
    with patch("predictor_service.requests.offered.time.monotonic", lambda: later):
        begin(store, other(99), "hostile").abandon()


def test_a_tokenizer_whose_loading_killed_the_sidecar_is_not_loaded_again_until_its_mark_is_deleted(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    kept = put(store, FILES)
    dies = f"""
import os, pathlib
from predictor_service.requests.offered import OfferedTokenizers
with OfferedTokenizers(pathlib.Path({str(tmp_path)!r}), 2**20).attempt({kept!r}):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", dies]).returncode == 9
    for _ in range(2):
        with (
            pytest.raises(OfferRefused, match=r"the sidecar died while it loaded this tokenizer: delete .*\.loading-"),
            store.attempt(kept),
        ):
            pass
    (tmp_path / f".loading-{kept}").unlink()
    with store.attempt(kept):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [kept]


def test_two_sidecars_can_use_one_folder(tmp_path: Path) -> None:
    stores = [OfferedTokenizers(tmp_path, 2**20) for _ in range(2)]
    loaded = []

    def load(store: OfferedTokenizers) -> None:
        with store.attempt("0" * 64):
            time.sleep(0.2)
            loaded.append(store)

    threads = [threading.Thread(target=load, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 2


def test_a_failure_to_load_leaves_no_mark(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    for _ in range(2):
        with contextlib.suppress(ValueError), store.attempt("0" * 64):
            raise ValueError
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_damaged_on_disk_is_removed(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    put(store, FILES)
    (tmp_path / digest(FILES) / "tokenizer.json").write_bytes(b"{}")
    assert not store.intact(digest(FILES))
    assert store.find(digest(FILES)) is None


def test_an_unwritable_folder_is_named(small_disk: Path) -> None:
    store = OfferedTokenizers(small_disk, 2**20)
    large = {"tokenizer.json": b"x" * 100_000}
    with pytest.raises(OfferRefused, match=r"LPC_STATE"):
        put(store, large)
    assert not list(small_disk.iterdir())
    put(store, FILES)
