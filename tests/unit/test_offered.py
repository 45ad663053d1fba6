"""What engines offer is kept whole or not at all, under its digest, within its bound."""

import itertools
import os
import time
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import pytest

from eviction_client.offer import look_at
from lpc.wire.tokenizer_files import digest_of
from predictor_service.requests.offered import OfferedTokenizers, OfferRefused, Receipt

FILES = {"chat_template.jinja": b"{{ messages }}", "tokenizer.json": bytes(range(256)) * 40, "tokenizer_config.json": b"{}"}


def digest(files: dict[str, bytes]) -> str:
    return digest_of({name: sha256(content).hexdigest() for name, content in files.items()})


def begin(store: OfferedTokenizers, files: dict[str, bytes]) -> Receipt:
    receipt = store.receive(digest(files), {name: len(content) for name, content in files.items()})
    assert receipt is not None
    return receipt


def put(store: OfferedTokenizers, files: dict[str, bytes]) -> str:
    assert begin(store, files).write(b"".join(files.values()))
    return digest(files)


def other(n: int) -> dict[str, bytes]:
    return {"tokenizer.json": bytes([n]) * 1000}


def test_what_was_cut_anywhere_is_whole_again(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path / "kept", 2**20)
    receipt = begin(store, FILES)
    content = b"".join(FILES.values())
    cuts = [content[i : i + 77] for i in range(0, len(content), 77)]
    assert [receipt.write(cut) for cut in cuts] == [False] * (len(cuts) - 1) + [True]
    folder = store.find(digest(FILES))
    assert folder is not None and store.intact(digest(FILES))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [digest(FILES)]
    assert look_at({file.name: file for file in folder.iterdir()}).digest == digest(FILES), "both sides count alike"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"../../tokenizer.json": 1}, "any of added_tokens.json, "),
        ({"tokenizer.json": 1, "code.py": 1}, "any of"),
        ({"tokenizer_config.json": 1}, "with tokenizer.json"),
        ({"tokenizer_config.json": 1, "tokenizer.json": 1}, "in this order"),
        ({"tokenizer.json": 2**20 + 1}, "has 1048577 bytes, this sidecar takes 1048576"),
    ],
)
def test_what_is_no_tokenizer_is_not_taken(tmp_path: Path, files: dict[str, int], why: str) -> None:
    with pytest.raises(OfferRefused, match=why):
        OfferedTokenizers(tmp_path / "kept", 2**20).receive("0" * 64, files)
    assert not any((tmp_path / "kept").iterdir())


def test_other_bytes_than_were_offered_leave_nothing_behind(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    content = b"".join(FILES.values())
    for wrong in (content[:-1] + b"x", content + b"x"):
        with pytest.raises(OfferRefused):
            begin(store, FILES).write(wrong)
        assert not list(tmp_path.iterdir()) and not store.receives(digest(FILES))
    begin(store, FILES).abandon()
    assert not list(tmp_path.iterdir())


def test_a_digest_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "secret").mkdir()
    store = OfferedTokenizers(tmp_path / "kept", 2**20)
    assert store.find("../secret") is None
    with pytest.raises(OfferRefused, match="64 hexadecimal digits"):
        store.receive("../secret", {"tokenizer.json": 1})


def test_those_used_longest_ago_make_room(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 3500)
    digests = [put(store, other(n)) for n in range(3)]
    for age, known in zip((30, 20, 10), digests, strict=True):
        os.utime(tmp_path / known, (time.time() - age,) * 2)
    assert store.find(digests[0]) is not None
    newest = put(store, other(9))
    assert {path.name for path in tmp_path.iterdir()} == {digests[0], digests[2], newest}


def test_what_is_being_received_counts_and_does_not_make_room(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 3500)
    receipts = [begin(store, other(n)) for n in range(3)]
    with pytest.raises(OfferRefused, match="later"):
        begin(store, other(9))
    assert store.receive(receipts[0].digest, {"tokenizer.json": 1000}) is None, "it comes already"
    receipts[0].abandon()
    put(store, other(9))


def test_one_that_stalls_is_asked_of_another_engine(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    stalled = begin(store, FILES)
    now = itertools.count(time.monotonic() + 60)
    with patch("predictor_service.requests.offered.time.monotonic", lambda: next(now)):
        assert put(store, FILES)
    with pytest.raises(OfferRefused, match="another engine was asked"):
        stalled.write(b"x")
    assert store.intact(digest(FILES))


def test_one_that_was_damaged_on_disk_is_removed(tmp_path: Path) -> None:
    store = OfferedTokenizers(tmp_path, 2**20)
    put(store, FILES)
    (tmp_path / digest(FILES) / "tokenizer.json").write_bytes(b"{}")
    assert not store.intact(digest(FILES))
    assert store.find(digest(FILES)) is None


def test_a_folder_that_cannot_be_written_is_named(small_disk: Path) -> None:
    store = OfferedTokenizers(small_disk, 2**20)
    large = {"tokenizer.json": b"x" * 100_000}
    with pytest.raises(OfferRefused, match=r"LPC_OFFERED_TOKENIZERS"):
        put(store, large)
    assert not list(small_disk.iterdir())
    put(store, FILES)
