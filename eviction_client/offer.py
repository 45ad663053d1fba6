"""This engine's tokenizer, offered to the sidecar, which has to read the engine's token ids: its files, or only its name.

Once per connection the sidecar is told name and digest; it asks for the files where it has not got them. They are looked for
and read in the predictor client's threads, never in the scheduler's, and a bounded number of bytes at a time. Whatever goes
wrong, the engine serves on: then its prompts are not read, which is said once in the log.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from eviction_client.said import Said
from lpc.v1 import predictor_pb2
from lpc.wire.tokenizer_files import CHUNK_BYTES, MAX_BYTES, NAMES, NEEDED, digest_of

TokenizerState = Literal["unknown", "none", "ignored", "sending", "loading", "ready", "refused", "failed"]
"""How a sidecar stands with this engine's tokenizer: not asked yet; there is none to offer, and it knows none; it is older
than offers; it is being sent; it is being received from another engine, or loaded; prompts are read; it is not taken; it cannot
be loaded."""
STATES: Final[tuple[TokenizerState, ...]] = (
    *("failed", "refused", "none", "ignored"),
    *("sending", "loading", "ready", "unknown"),
)
"""The worst first."""
REQUEST_ID: Final = "tokenizer"
"""Of the offer on its stream; those of questions are numbers."""

FindFiles = Callable[[], Mapping[str, Path]]
"""Returns the files of the engine's tokenizer by their names, those of `tokenizer_files.NAMES` that there are; takes as long as
a look at the disk. Raises NoTokenizer."""

_HEARD: Final[dict[int, TokenizerState]] = {
    predictor_pb2.TOKENIZER_STATE_READY: "ready",
    predictor_pb2.TOKENIZER_STATE_LOADING: "loading",
    predictor_pb2.TOKENIZER_STATE_WANTED: "sending",
    predictor_pb2.TOKENIZER_STATE_REFUSED: "refused",
    predictor_pb2.TOKENIZER_STATE_FAILED: "failed",
}


class NoTokenizer(Exception):
    """The engine's tokenizer has no files that could be offered. The message says why."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Files of a tokenizer as they were when they were looked at. ``sizes``: by name, in order, bytes."""

    digest: str
    sizes: Mapping[str, int]
    paths: Mapping[str, Path]


def look_at(paths: Mapping[str, Path]) -> TokenizerFiles:
    """Return the digest and sizes of a tokenizer's files; other names are passed over. Raises OSError, NoTokenizer."""
    known = {name: paths[name] for name in NAMES if name in paths}
    if NEEDED not in known:
        raise NoTokenizer(f"it has no {NEEDED}")
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    for name, path in known.items():
        size = path.stat().st_size
        if sum(sizes.values()) + size > MAX_BYTES:
            raise NoTokenizer(f"its files have more than {MAX_BYTES} bytes")
        with path.open("rb") as file:
            digest, size = sha256(), 0
            while size <= MAX_BYTES and (data := file.read(CHUNK_BYTES)):
                digest.update(data)
                size += len(data)
        sizes[name], digests[name] = size, digest.hexdigest()
    return TokenizerFiles(digest_of(digests), sizes, known)


class Offer:
    """What is offered on every connection of a predictor client, and what came of it. Not for the scheduler's thread.

    Attributes:
        served_model: name under which the engine serves.
    """

    def __init__(self, served_model: str, find: FindFiles, said: Said) -> None:
        self.served_model = served_model
        self._lock = threading.Lock()
        self._states: dict[object, TokenizerState] = {}
        """By connection."""
        self._find = find
        self._say = said.once
        self._files: TokenizerFiles | None = None
        self._looked = False
        self._looking = threading.Lock()

    @property
    def state(self) -> TokenizerState:
        """The worst of all connections."""
        with self._lock:
            return next((state for state in STATES if state in self._states.values()), "unknown")

    def digest_of(self, served_model: str) -> str:
        """Return a tokenizer's digest; empty where it is not this one, there is none to offer, or nobody has looked yet."""
        return self._files.digest if self._files is not None and served_model == self.served_model else ""

    def message(self) -> predictor_pb2.PredictStreamRequest:
        """Return the offer. Reads the files the first time."""
        with self._looking:
            if not self._looked:
                self._look()
                self._looked = True
        sizes = self._files.sizes if self._files is not None else {}
        files = [predictor_pb2.TokenizerFile(name=name, bytes=size) for name, size in sizes.items()]
        offer = predictor_pb2.TokenizerOffer(
            served_model=self.served_model, digest=self.digest_of(self.served_model), files=files
        )
        return predictor_pb2.PredictStreamRequest(request_id=REQUEST_ID, offer=offer)

    def parts(self, most: int) -> Iterator[predictor_pb2.PredictStreamRequest]:
        """Yield the files in messages of at most ``most`` bytes of content; an empty one where they cannot be read any more."""
        if self._files is None:
            return
        try:
            for name, path in self._files.paths.items():
                left = self._files.sizes[name]
                with path.open("rb") as file:
                    while left:
                        data = file.read(min(left, most))
                        if not data:
                            raise OSError("it has become shorter")
                        left -= len(data)
                        yield _part(data)
        except OSError as error:
            self._say("unread", logging.WARNING, "its tokenizer's files cannot be read any more (%s)", error.strerror or error)
            yield _part(b"")

    def heard(self, connection: object, status: predictor_pb2.TokenizerStatus) -> bool:
        """Take in what a sidecar says of the tokenizer; return whether it wants the files."""
        state = _HEARD.get(status.state, "unknown")
        if state == "refused" and self._files is None:
            state = "none"
        self._enter(connection, state)
        if state == "ready":
            self._say("ready", logging.INFO, "the predictor reads the prompts of %s", self.served_model)
        elif state in ("none", "refused", "failed"):
            self._say(
                state,
                logging.WARNING,
                "the predictor does not read the prompts of %s, so that credit goes by lengths and times alone: %s",
                self.served_model,
                status.message,
            )
        return state == "sending"

    def ignored(self, connection: object) -> None:
        """Take in that a sidecar does not understand offers."""
        self._enter(connection, "ignored")
        self._say(
            "ignored",
            logging.WARNING,
            "the predictor is older than this client and takes no tokenizer: LPC_SERVED_MODELS there must name that of %s",
            self.served_model,
        )

    def gone(self, connection: object) -> None:
        """Forget a connection that is over."""
        with self._lock:
            self._states.pop(connection, None)

    def answered_unread(self, connection: object) -> None:
        """Take in that a prompt was answered without having been read, which is no news while the tokenizer is on its way."""
        if self._states.get(connection) == "ready":
            self._say(
                "foreign",
                logging.WARNING,
                "the predictor has a tokenizer for %s and does not read its prompts: its own log and `lpc doctor` say why",
                self.served_model,
            )

    def _enter(self, connection: object, state: TokenizerState) -> None:
        with self._lock:
            self._states[connection] = state

    def _look(self) -> None:
        try:
            self._files = look_at(self._find())
        except NoTokenizer as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        except Exception as error:
            reason = type(error).__name__
        else:
            return
        self._say(
            "nothing",
            logging.WARNING,
            "the tokenizer of %s cannot be offered to the predictor (%s): LPC_SERVED_MODELS of the sidecar must name it",
            self.served_model,
            reason,
        )


def _part(data: bytes) -> predictor_pb2.PredictStreamRequest:
    return predictor_pb2.PredictStreamRequest(request_id=REQUEST_ID, chunk=predictor_pb2.TokenizerChunk(data=data))
