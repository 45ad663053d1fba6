"""Turns, waits and places of offered tokenizers, with a loader that the test drives."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from lpc.wire.tokenizer_files import MAX_BYTES
from predictor_service.errors import TokenizerFailed, TokenizerLoading
from predictor_service.requests import uploads as module
from predictor_service.requests.loading import Loaded, TokenizerError, TokenizerLoader
from predictor_service.requests.served_models import (
    MAX_CLIENTS,
    MAX_FAILED,
    MAX_LOADED,
    MAX_LOADED_TOKENS,
    RETRY_S,
    ServedModels,
)
from predictor_service.requests.uploads import ALONE_S, MAX_UPLOADED, PENALTY, OfferWaits, Upload
from tests.eventually import patiently, until

SIZES = {"tokenizer.json": 10}


class DrivenLoader(TokenizerLoader):
    """Loads tokenizers of chosen sizes, fails with chosen ones, and waits for `go`. ``clock``: a load takes ``takes`` on it."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.began: list[str] = []
        self.failing: set[str] = set()
        self.vocabulary = 4
        self.takes = 0.0
        self._clock = clock

    def load(self, source: str, *, offered: bool) -> Loaded:
        content = (Path(source) / "tokenizer.json").read_text().strip()
        self.began.append(content)
        assert self.go.wait(patiently())
        self._clock[0] += self.takes
        if content in self.failing:
            raise TokenizerError("it hangs")
        words = {f"w{n}": n for n in range(self.vocabulary)}
        backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
        return Loaded(backend, None, np.ones(self.vocabulary, np.int32))


class Table:
    """The table, its clock and its loader."""

    def __init__(self) -> None:
        self.now = [0.0]
        self.loader = DrivenLoader(self.now)
        self.offered = ServedModels({}, self.loader, lambda: self.now[0])

    def upload(self, client: str, digest: str, name: str = "m") -> Upload:
        upload = self.offered.begin(client, name, digest, SIZES)
        upload.write(f"{digest:10}".encode())
        upload.received_digest()
        return upload

    def load(self, client: str, digest: str, name: str = "m") -> None:
        """Offer a tokenizer and wait until it is loaded or has failed."""
        self.now[0] += ALONE_S
        self.offered.received(self.upload(client, digest, name))
        until(lambda: not self.offered.uploading)
        until(lambda: "loading" not in self.states(digest))

    def states(self, digest: str) -> list[str]:
        return [known.state for known in self.offered.known("") if known.digest == digest]

    def ready(self) -> set[str]:
        return {known.digest for known in self.offered.known("") if known.state == "ready"}


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.loader.go.set()
    made.offered.close()
    assert made.offered.uploading == 0
    made.loader.close()


def test_a_client_has_one_upload_until_it_is_loaded(table: Table) -> None:
    table.loader.go.clear()
    first = table.upload("a", "1")
    with pytest.raises(OfferWaits, match="another tokenizer of client a is being received or loaded"):
        table.upload("a", "2")
    table.offered.received(first)
    with pytest.raises(OfferWaits, match="another tokenizer of client a"):
        table.upload("a", "2")
    with pytest.raises(TokenizerLoading):
        table.offered.get("m", "1")
    table.loader.go.set()
    until(lambda: table.ready() == {"1"})
    table.load("a", "2")
    assert table.ready() == {"1", "2"}


def test_of_several_uploads_of_a_digest_the_first_complete_one_is_loaded(table: Table) -> None:
    table.loader.go.clear()
    uploads = []
    for client in ("a", "b", "c"):
        uploads.append(table.upload(client, "1"))
        with pytest.raises(OfferWaits, match="another client sends this tokenizer"):
            table.upload("d", "1")
        table.now[0] += ALONE_S
    table.offered.received(uploads[1])
    assert not table.offered.useful(uploads[0]) and not table.offered.needs("d", "m", "1")
    table.offered.received(uploads[2])
    table.offered.abandon(uploads[0], punish=False).result(60)
    table.loader.go.set()
    until(lambda: not table.offered.uploading)
    assert table.loader.began == ["1"] and table.ready() == {"1"}


def test_loads_have_the_order_of_arrival_and_one_of_each_client_waits(table: Table) -> None:
    table.loader.go.clear()
    for client in ("a", "b", "c", "d"):
        table.offered.received(table.upload(client, client))
        with pytest.raises(OfferWaits):
            table.upload(client, f"{client}2")
    table.loader.go.set()
    until(lambda: not table.offered.uploading)
    assert table.loader.began == ["a", "b", "c", "d"]


def test_a_client_whose_loads_fail_waits_for_a_multiple_of_their_time(table: Table) -> None:
    table.loader.failing = {f"bad{n}" for n in range(100)}
    table.loader.takes = 60.0
    loads = 0
    end = 3600.0
    while table.now[0] < end:
        try:
            table.load("attacker", f"bad{loads}")
            loads += 1
        except OfferWaits as reason:
            assert "its next one is accepted in" in str(reason) or loads == 0
            table.now[0] += 1
    assert 60 * loads <= end / (1 + PENALTY) + 2 * 60
    table.loader.takes = 1.0
    table.load("honest", "good")
    assert table.ready() == {"good"}


def test_an_upload_that_ends_early_costs_its_client_time_and_no_other(table: Table) -> None:
    upload = table.upload("a", "1")
    table.now[0] += 10
    table.offered.abandon(upload, punish=True).result(60)
    with pytest.raises(OfferWaits, match="accepted in 40 s"):
        table.upload("a", "1")
    table.load("b", "1")
    table.now[0] += PENALTY * 10
    table.load("a", "2")
    assert table.ready() == {"1", "2"}


def test_a_short_failure_is_not_punished(table: Table) -> None:
    upload = table.upload("fleet", "1")
    table.now[0] += 0.5
    table.offered.abandon(upload, punish=True).result(60)
    table.now[0] += ALONE_S
    table.load("fleet", "1")


def test_uploads_are_bounded_in_bytes_and_number(table: Table) -> None:
    large = [table.offered.begin(f"c{n}", "m", f"{n}", {"tokenizer.json": MAX_BYTES}) for n in range(MAX_UPLOADED // MAX_BYTES)]
    with pytest.raises(OfferWaits, match="as many tokenizers as this sidecar receives"):
        table.upload("more", "more")
    for upload in large:
        table.offered.abandon(upload, punish=False).result(60)
    small: list[Upload] = []
    with pytest.raises(OfferWaits, match="as many tokenizers as this sidecar receives"):
        while True:
            small.append(table.offered.begin(f"c{len(small)}", "m", f"{len(small)}", {"tokenizer.json": 1}))
    assert len(small) == 32
    for upload in small:
        table.offered.abandon(upload, punish=False).result(60)
    table.load("more", "more")


@pytest.mark.parametrize("touching", [False, True])
def test_a_client_that_offers_many_tokenizers_pushes_out_its_own(table: Table, touching: bool) -> None:
    honest = {f"h{n}" for n in range(MAX_LOADED - 1)}
    for digest in honest:
        table.load(f"client-{digest}", digest)
    for n in range(32):
        table.load("attacker", f"a{n}")
        if touching:  # it keeps its tokenizers in use, and offers those of others
            table.offered.get("m", f"a{n}")
            for digest in honest:
                table.offered.needs("attacker", "m", digest)
    assert table.ready() == {*honest, "a31"}


def test_a_client_cannot_push_out_what_it_has_sent_and_another_one_offers_too(table: Table) -> None:
    table.load("attacker", "shared")
    assert not table.offered.needs("honest", "m", "shared")
    for n in range(2 * MAX_LOADED):
        table.load("attacker", f"a{n}")
    assert len(table.ready()) == MAX_LOADED and "shared" in table.ready()


def test_a_client_with_large_vocabularies_pushes_out_its_own(table: Table) -> None:
    table.loader.vocabulary = MAX_LOADED_TOKENS // 16
    for n in range(4):
        table.load(f"client-{n}", f"h{n}")
    table.loader.vocabulary = MAX_LOADED_TOKENS // 2
    for n in range(3):
        table.load("attacker", f"a{n}")
    table.loader.vocabulary = MAX_LOADED_TOKENS // 16
    table.load("client-4", "h4")
    assert table.ready() == {"h0", "h1", "h2", "h3", "h4", "a2"}


def test_without_a_greedy_client_the_least_recently_used_tokenizer_goes(table: Table) -> None:
    for n in range(MAX_LOADED):
        table.load(f"client-{n}", f"h{n}")
    table.now[0] += 1
    assert table.offered.get("m", "h0") is not None
    table.load("one-more", "h9")
    assert table.ready() == {f"h{n}" for n in (0, 2, 3, 4, 5, 6, 7, 9)}


def test_failed_tokenizers_push_out_neither_loaded_ones_nor_those_of_others(table: Table) -> None:
    table.load("honest", "good")
    table.loader.failing = {"mine", *(f"bad{n}" for n in range(MAX_FAILED + 20))}
    table.load("honest", "mine")
    for n in range(MAX_FAILED + 20):
        table.load("attacker", f"bad{n}")
    known = [known.digest for known in table.offered.known("")]
    assert len(known) == 1 + MAX_FAILED and {"good", "mine", f"bad{MAX_FAILED + 19}"} <= set(known)
    with pytest.raises(TokenizerFailed):
        table.offered.get("m", "mine")


def test_offering_a_failed_tokenizer_and_giving_up_does_not_forget_its_failures(table: Table) -> None:
    table.loader.failing = {"1"}
    table.load("a", "1")
    table.now[0] += RETRY_S
    assert table.offered.needs("b", "m", "1")
    table.offered.abandon(table.upload("b", "1"), punish=True).result(60)
    table.load("b", "1")
    table.now[0] += RETRY_S
    assert not table.offered.needs("b", "m", "1"), "the second wait is four times as long"


def test_a_client_sees_its_own_name_of_a_tokenizer(table: Table) -> None:
    table.load("first", "1", "name of first")
    assert not table.offered.needs("second", "name of second", "1")
    names = {client: table.offered.known(client)[0].name for client in ("first", "second", "third")}
    assert names == {"first": "name of first", "second": "name of second", "third": "name of first"}
    for n in range(2 * MAX_CLIENTS):
        table.offered.needs(f"c{n}", f"name {n}", "1")
    (entry,) = table.offered._offered.values()
    assert len(entry.names) == MAX_CLIENTS


def test_names_that_look_alike_are_different_tokenizers_by_digest(table: Table) -> None:
    names = ["café", "cafe\u0301", "CAFÉ", "саfé"]
    for n, name in enumerate(names):
        table.load(f"c{n}", f"{n}", name)
    for n, name in enumerate(names):
        assert {known.digest: known.name for known in table.offered.known(f"c{n}")}[f"{n}"] == name
        assert table.offered.get(names[0], f"{n}") is not None


def test_all_accounting_is_zero_after_concurrent_offers_that_end_in_every_way(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALONE_S", 0.0)
    table.loader.failing = {"d1", "d2"}

    def client(number: int) -> None:
        for step in range(40):
            digest = f"d{(number + step) % 5}"
            try:
                upload = table.upload(f"c{number % 6}", digest)
            except OfferWaits:
                continue
            if step % 3 == 0:
                table.offered.abandon(upload, punish=False)
            else:
                table.offered.received(upload)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(client, range(8)))
    until(lambda: not table.offered.uploading)
    assert not list(table.loader.scratch.folder().iterdir())
