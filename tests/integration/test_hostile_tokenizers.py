"""Hostile tokenizers are offered to a real sidecar: it goes on answering, its memory is bounded, and nothing is tried for ever.

Each kind is offered once, and Hypothesis draws combinations: three (`make test-nightly`: 100). Each is read in a new process.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.tokenizer_files import CHUNK_BYTES, NAMES, digest_of
from testing.processes import Sidecar
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import patiently
from tests.nightly import EXAMPLES

OFFERS = max(3, EXAMPLES // 100)
GROWTH_MIB = 600
"""Of the sidecar: eight tokenizers and some prompts at a time."""
GOOD = pb.PredictRequest(conversation=pb.Conversation(prompt="hello world"))

Files = dict[str, bytes]
Metadata = tuple[tuple[str, str]]


def digest(files: Files) -> str:
    return digest_of({name: sha256(content).hexdigest() for name, content in files.items()})


class Offering:
    """A client that offers tokenizers."""

    def __init__(self, stub: rpc.ContinuationPredictorStub, metadata: Metadata) -> None:
        self._stub = stub
        self._metadata = metadata

    def offer(self, files: Files) -> list[pb.TokenizerStatus]:
        """Offer files until they are loaded, refused or have failed; return each status."""
        found = [self._offer(files)]
        while found[-1].state == pb.TOKENIZER_STATE_LOADING:
            time.sleep(0.1)
            found.append(self._offer(files))
        return found

    def ask(self, files: Files, ids: list[int]) -> str:
        """Ask about token ids; return what the answer is: a prediction or an error."""
        tokens = pb.TokenIds(ids=ids, served_model="m", tokenizer=digest(files))
        request = pb.PredictRequest(conversation=pb.Conversation(tokens=tokens), accept_unread=True)
        try:
            self._stub.Predict(request, timeout=300, metadata=self._metadata)
        except grpc.RpcError:
            return "error"
        return "prediction"

    def _offer(self, files: Files) -> pb.TokenizerStatus:
        named = [pb.TokenizerFile(name=name, bytes=len(content)) for name, content in files.items()]
        offer = pb.TokenizerOffer(served_model="m", digest=digest(files), files=named)
        content = b"".join(files.values())
        chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
        parts = [pb.OfferTokenizerRequest(offer=offer), *(pb.OfferTokenizerRequest(data=chunk) for chunk in chunks)]
        return self._stub.OfferTokenizer(iter(parts), timeout=300, metadata=self._metadata).status


def files_of(style: str, folder: Path) -> Files:
    tokenizer_of(STYLES[style]).save_pretrained(folder / style)
    return {name: (folder / style / name).read_bytes() for name in NAMES if (folder / style / name).exists()}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    folder = tmp_path_factory.mktemp("originals")
    return [files_of(style, folder) for style in ("chatml", "mistral", "zephyr")]


@pytest.fixture(scope="module")
def clients() -> list[Metadata]:
    """One for each offer, because a client whose tokenizer fails has to wait."""
    return [(("authorization", f"Bearer {n}"),) for n in range(2 * OFFERS + len(KINDS))]


@pytest.fixture(scope="module")
def sidecar(
    tiny_models: Path, clients: list[Metadata], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Sidecar, rpc.ContinuationPredictorStub]]:
    folder = tmp_path_factory.mktemp("sidecar")
    lines = (f"engine-{n}: {sha256(str(n).encode()).hexdigest()}\n" for n in range(len(clients)))
    (folder / "tokens").write_text("".join(lines))
    limits = {"threads": 1, "state": folder, "tokens": folder / "tokens"}
    with Sidecar(folder, tiny_models, "tiny", **limits) as process, grpc.insecure_channel(process.address) as channel:
        yield process, rpc.ContinuationPredictorStub(channel)


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Files], Files]:
    """Return what changes the tokenizer.json of files."""

    def apply(files: Files) -> Files:
        content = json.loads(files["tokenizer.json"])
        change(content)
        return files | {"tokenizer.json": json.dumps(content).encode()}

    return apply


def with_template(text: str) -> Callable[[Files], Files]:
    return lambda files: {name: (files | {"chat_template.jinja": text.encode()})[name] for name in NAMES if name in files}


REGEX = {"Regex": "(a|a|aa)*$"}
DOUBLING = "{% set ns = namespace(t='x' * 999) %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}"
STEPS: dict[str, Any] = {
    "regular expression": {"type": "Replace", "pattern": REGEX, "content": ""},
    "longer replacement": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000},
    "strip at the end": {"type": "Strip", "content": "a", "start": 0, "stop": 3},
    "strip of 2**40": {"type": "Strip", "content": "a", "start": 2**40, "stop": 0},
    "empty suffix": {"type": "BPEDecoder", "suffix": ""},
    "CTC": {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    "metaspace of a letter": {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": True},
    "10,000 steps": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 10_000},
    "another decoder": {"type": "ByteLevel"},
    "unknown decoder": {"type": "Unknown"},
}
TEMPLATES = {
    "doubling text": DOUBLING,
    "a text of 10**10": "{{ 'x' * 10**10 }}",
    "endless loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "long markup": "{% for m in messages %}{{ 'a' * 5000 }}{{ m.content }}{% endfor %}",
    "markup of a letter": "{% for m in messages %}a{{ m.content }}a{% endfor %}",
    "exit": "{{ cycler.__init__.__globals__.os._exit(0) }}",
    "file": "{% include '/etc/passwd' %}",
    "broken template": "{{",
    "empty template": "",
}


def decoder(step: Any) -> Callable[[Files], Files]:
    return changed(lambda content: content.update(decoder=step))


def long_token(characters: int) -> Callable[[Files], Files]:
    return changed(lambda content: content["model"]["vocab"].update({"x" * characters: 599}))


def long_added(characters: int) -> Callable[[Files], Files]:
    return changed(lambda content: content["added_tokens"][0].update(content="<" + "x" * characters))


def added_id(number: int) -> Callable[[Files], Files]:
    return changed(lambda content: content["added_tokens"][0].update(id=number))


SPLIT = {"type": "Split", "pattern": REGEX, "behavior": "Isolated", "invert": False}
KINDS: dict[str, Callable[[Files], Files]] = {
    **{name: decoder(step) for name, step in STEPS.items()},
    **{name: with_template(text) for name, text in TEMPLATES.items()},
    "long token": long_token(2**22),
    "long added token": long_added(2**22),
    "negative id": added_id(-1),
    "id of 2**31": added_id(2**31),
    "normalizer": changed(
        lambda content: content.update(normalizer={"type": "Replace", "pattern": REGEX, "content": "x" * 1000})
    ),
    "pre-tokenizer": changed(lambda content: content.update(pre_tokenizer=SPLIT)),
    "model of another type": changed(lambda content: content.update(model=[])),
    "nested lists": lambda files: files | {"tokenizer.json": b"[" * 2**20},
    "empty files": lambda files: dict.fromkeys(files, b""),
    "invalid UTF-8": lambda files: files | {"tokenizer_config.json": b"\xff" * 1000},
}
assert len(KINDS) >= 24
lengths = st.sampled_from([1, 1000, 1025, 2**18, 2**22])
steps = st.sampled_from(list(STEPS.values()))
changes = st.one_of(
    st.sampled_from([change for name, change in KINDS.items() if name != "endless loop"]),
    st.builds(
        lambda found, n: decoder({"type": "Sequence", "decoders": found * n}), st.lists(steps), st.sampled_from([1, 1000])
    ),
    lengths.map(long_token),
    lengths.map(long_added),
    st.sampled_from([-1, 2**20, 2**31, 2**40]).map(added_id),
    st.tuples(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]), st.integers(0, 10_000), st.binary(max_size=4)).map(
        lambda cut: lambda files: files | {cut[0]: files[cut[0]][: cut[1]] + cut[2] + files[cut[0]][cut[1] + 1 :]}
    ),
)
number = itertools.count()


Running = tuple[Sidecar, rpc.ContinuationPredictorStub]


def check(running: Running, client: Metadata, files: Files, ids: list[int]) -> None:
    """Offer files: they are read or refused once, small requests are answered, and memory is bounded."""
    process, stub = running
    before = process.rss_mib
    stream = Offering(stub, client)
    last = stream.offer(files)[-1]
    assert last.state in (pb.TOKENIZER_STATE_READY, pb.TOKENIZER_STATE_FAILED, pb.TOKENIZER_STATE_REFUSED)
    assert stub.Predict(GOOD, timeout=patiently(), metadata=client).prediction.probability > 0
    for _ in range(3):
        assert [status.state for status in stream.offer(files)] == [last.state], "neither sent nor read again"
    assert stream.ask(files, ids * 1000) in ("prediction", "error")
    assert stub.Predict(GOOD, timeout=patiently(), metadata=client).prediction.probability > 0
    assert process.running
    assert process.rss_mib - before < GROWTH_MIB
    assert "internal error" not in process.log and "panicked" not in process.log


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_hostile_tokenizer_is_read_or_refused_once(
    sidecar: Running, clients: list[Metadata], originals: list[Files], kind: str
) -> None:
    check(sidecar, clients[next(number)], KINDS[kind](originals[0]), [1, 5, 599])


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the originals, when an example fails
@settings(max_examples=OFFERS, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), change=st.lists(changes, min_size=1, max_size=2), ids=st.lists(st.integers(0, 599), min_size=1))
def test_a_hostile_tokenizer_is_read_or_refused_once_and_small_requests_are_answered(
    sidecar: Running,
    clients: list[Metadata],
    originals: list[Files],
    which: int,
    change: list[Callable[[Files], Files]],
    ids: list[int],
) -> None:
    files = originals[which]
    for one in change:
        try:
            files = one(files)
        except (ValueError, KeyError, TypeError, RecursionError):
            break  # of what the first change has broken
    check(sidecar, clients[next(number) % len(clients)], files, ids)
