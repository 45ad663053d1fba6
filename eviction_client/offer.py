"""This engine's tokenizer, offered to the sidecar, which has to read the engine's token ids: its files, or only its name.

An offer is one call: name and digest first, then the files. It reaches whichever sidecar is next, which answers before the
first byte if it has the tokenizer. It is repeated until the answer is "ready", and whenever a sidecar has answered without
reading a prompt: so each of several sidecars gets it, and one that was restarted or added. The files are read in a thread of
the predictor client's, a bounded number of bytes at a time. Whatever goes wrong, the engine serves on, and one line is logged.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from lpc.v1 import predictor_pb2
from lpc.wire.tokenizer_files import CHUNK_BYTES, MAX_BYTES, NAMES, NEEDED, digest_of

logger = logging.getLogger("eviction_client")

TokenizerState = Literal["unknown", "none", "loading", "ready", "refused", "failed"]
"""How the sidecar that answered last stands with this engine's tokenizer: not asked yet; there is none to offer, and it knows
none; it is received from another engine, or loaded; prompts are read; it is not taken; it cannot be loaded."""
STATES: Final[tuple[TokenizerState, ...]] = ("failed", "refused", "none", "loading", "ready", "unknown")

FindFiles = Callable[[], Mapping[str, Path]]
"""Returns the files of the engine's tokenizer by their names, those of `tokenizer_files.NAMES` that there are; takes as long as
a look at the disk. Raises NoTokenizer."""

_HEARD: Final[dict[int, TokenizerState]] = {
    predictor_pb2.TOKENIZER_STATE_READY: "ready",
    predictor_pb2.TOKENIZER_STATE_LOADING: "loading",
    predictor_pb2.TOKENIZER_STATE_REFUSED: "refused",
    predictor_pb2.TOKENIZER_STATE_FAILED: "failed",
}


class NoTokenizer(Exception):
    """The engine's tokenizer has no files that could be offered. The message says why."""


class LogOnce:
    """Logs a line of each kind once in an engine's life. The kinds are few, so it is bounded."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, kind: str, level: int, text: str, *values: object) -> None:
        """Log, unless a line of this kind was logged."""
        if kind not in self._logged:
            self._logged.add(kind)
            logger.log(level, "learned prefix cache: " + text, *values)


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
    """What is offered, and what came of it. Not for the scheduler's thread.

    Attributes:
        served_model: name under which the engine serves.
        state: by the latest answer to an offer.
    """

    def __init__(self, served_model: str, find: FindFiles, log: LogOnce) -> None:
        self.served_model = served_model
        self.state: TokenizerState = "unknown"
        self._find = find
        self._log = log
        self._files: TokenizerFiles | None = None

    def digest_of(self, served_model: str) -> str:
        """Return a tokenizer's digest; empty if it is not this one, there is none to offer, or :meth:`look` was not called."""
        return self._files.digest if self._files is not None and served_model == self.served_model else ""

    def look(self) -> None:
        """Read the files for their digest; call it once, before all else."""
        try:
            self._files = look_at(self._find())
            return
        except NoTokenizer as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        except Exception as error:
            reason = type(error).__name__
        self._log(
            "nothing",
            logging.WARNING,
            "the tokenizer of %s cannot be offered to the predictor (%s): LPC_SERVED_MODELS of the sidecar must name it",
            self.served_model,
            reason,
        )

    def parts(self) -> Iterator[predictor_pb2.OfferTokenizerRequest]:
        """Yield the messages of one offer; the last is empty if the files cannot be read any more."""
        files = self._files
        sizes = files.sizes if files is not None else {}
        named = [predictor_pb2.TokenizerFile(name=name, bytes=size) for name, size in sizes.items()]
        digest = self.digest_of(self.served_model)
        offer = predictor_pb2.TokenizerOffer(served_model=self.served_model, digest=digest, files=named)
        yield predictor_pb2.OfferTokenizerRequest(offer=offer)
        if files is None:
            return
        try:
            for name, path in files.paths.items():
                left = sizes[name]
                with path.open("rb") as file:
                    while left:
                        data = file.read(min(left, CHUNK_BYTES))
                        if not data:
                            raise OSError("it has become shorter")
                        left -= len(data)
                        yield predictor_pb2.OfferTokenizerRequest(data=data)
        except OSError as error:
            self._log("unread", logging.WARNING, "its tokenizer's files cannot be read any more (%s)", error.strerror or error)
            yield predictor_pb2.OfferTokenizerRequest(data=b"")

    def heard(self, status: predictor_pb2.TokenizerStatus) -> None:
        """Take in what a sidecar answers."""
        state = _HEARD.get(status.state, "unknown")
        if state == "refused" and self._files is None:
            state = "none"
        self.state = state
        if state == "ready":
            self._log("ready", logging.INFO, "the predictor reads the prompts of %s", self.served_model)
        elif state in ("none", "refused", "failed"):
            self._log(
                state,
                logging.WARNING,
                "the predictor does not read the prompts of %s, so it predicts by lengths and times alone: %s",
                self.served_model,
                status.message,
            )
