"""Upload of this engine's tokenizer to the sidecar, which needs it to decode the engine's token ids.

An offer is one call: name and digest first, then the files. A sidecar that has the tokenizer answers before the first file.
gRPC picks the sidecar. The client repeats the offer until the answer is "ready", and whenever a sidecar could not read a
prompt, so that every sidecar gets the tokenizer, including restarted and added ones. The client reads the
files in chunks of bounded size. A failure logs one line and does not affect serving.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from lpc.v1 import predictor_pb2
from lpc.wire.names import as_name
from lpc.wire.terminal import shown
from lpc.wire.tokenizer_files import CHUNK_BYTES, MAX_BYTES, NAMES, NEEDED, digest_of, without_needed

logger = logging.getLogger("eviction_client")

TokenizerState = Literal["unknown", "none", "loading", "ready", "refused", "failed"]
"""State of this engine's tokenizer in the sidecar that answered last.

- ``unknown``: no sidecar has answered an offer yet.
- ``none``: the engine has no tokenizer files, and the sidecar has no tokenizer for the model.
- ``loading``: the sidecar receives the files from another engine, or loads them.
- ``ready``: the sidecar reads prompts.
- ``refused``: the sidecar rejects the tokenizer.
- ``failed``: the sidecar could not load the tokenizer.
"""
STATES: Final[tuple[TokenizerState, ...]] = ("failed", "refused", "none", "loading", "ready", "unknown")

FindFiles = Callable[[], Mapping[str, Path]]
"""Returns the paths of the engine's tokenizer files by name; other files are ignored. Raises OSError, NoTokenizer."""

_STATE_OF: Final[dict[int, TokenizerState]] = {
    predictor_pb2.TOKENIZER_STATE_READY: "ready",
    predictor_pb2.TOKENIZER_STATE_LOADING: "loading",
    predictor_pb2.TOKENIZER_STATE_REFUSED: "refused",
    predictor_pb2.TOKENIZER_STATE_FAILED: "failed",
}


class NoTokenizer(Exception):
    """The engine's tokenizer has no files to offer. The message gives the reason."""


class LogOnce:
    """Logs one line of each kind."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, kind: str, level: int, text: str, *values: object) -> None:
        """Log the line unless one of this kind was logged before."""
        if kind not in self._logged:
            self._logged.add(kind)
            shown_values = (shown(value) if isinstance(value, str) else value for value in values)
            logger.log(level, "learned prefix cache: " + text, *shown_values)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Files of a tokenizer at the time they were read. ``sizes``: bytes by name, in the order of upload."""

    digest: str
    sizes: Mapping[str, int]
    paths: Mapping[str, Path]


def files_in(folder: Path) -> Mapping[str, Path]:
    """Return the files in a folder by name. Raises OSError."""
    return {path.name: path for path in folder.iterdir() if path.is_file()}


def hash_files(paths: Mapping[str, Path]) -> TokenizerFiles:
    """Return the digest and sizes of a tokenizer's files, ignoring other files. Raises OSError, NoTokenizer."""
    known = {name: paths[name] for name in NAMES if name in paths}
    if NEEDED not in known:
        raise NoTokenizer(without_needed(paths))
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
    """The messages of an offer, and the state of the tokenizer in the sidecar. Not for the scheduler's thread.

    Attributes:
        served_model: name under which the engine serves.
        state: the latest answer to an offer.
        is_read_in_part: whether the sidecar has the tokenizer, but reads only some of its prompts.
    """

    def __init__(self, served_model: str, find: FindFiles, log: LogOnce) -> None:
        self.served_model = as_name(served_model)
        self.state: TokenizerState = "unknown"
        self.is_read_in_part = False
        self._find = find
        self._log = log
        self._files: TokenizerFiles | None = None
        self._why_none = ""

    def digest_of(self, served_model: str) -> str:
        """Return the digest of a model's tokenizer; empty for another model, without files, and before :meth:`read_files`."""
        known = self._files is not None and as_name(served_model) == self.served_model
        return self._files.digest if self._files is not None and known else ""

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(self._files.sizes.values()) if self._files is not None else 0

    def read_files(self) -> None:
        """Read and hash the files. Call it once, before all else."""
        try:
            self._files = hash_files(self._find())
            return
        except NoTokenizer as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        except Exception as error:
            reason = type(error).__name__
        self._why_none = f"{reason}; name a folder with a {NEEDED} in LPC_SERVED_MODELS of the sidecar"
        self._log(
            "nothing",
            logging.WARNING,
            "the tokenizer of %s cannot be offered to the predictor (%s): name it in LPC_SERVED_MODELS of the sidecar",
            self.served_model,
            reason,
        )

    def parts(self) -> Iterator[predictor_pb2.OfferTokenizerRequest]:
        """Yield the messages of one offer. If a file cannot be read, the last message is empty."""
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
                            raise OSError("a file has been truncated")
                        left -= len(data)
                        yield predictor_pb2.OfferTokenizerRequest(data=data)
        except OSError as error:
            self._log("unread", logging.WARNING, "cannot read the engine's tokenizer files (%s)", error.strerror or error)
            yield predictor_pb2.OfferTokenizerRequest(data=b"")

    def update(self, status: predictor_pb2.TokenizerStatus) -> None:
        """Set the state from a sidecar's answer."""
        state = _STATE_OF.get(status.state, "unknown")
        if state == "refused" and self._files is None:
            state = "none"
        self.state = state
        self.is_read_in_part = state == "ready" and bool(status.message)
        if self.is_read_in_part:
            self._log("in part", logging.WARNING, "the predictor reads %s in part: %s", self.served_model, status.message)
        elif state == "ready":
            self._log("ready", logging.INFO, "the predictor reads the prompts of %s", self.served_model)
        elif state == "loading" and status.message:
            self._log(
                "waits", logging.INFO, "the predictor takes the tokenizer of %s later: %s", self.served_model, status.message
            )
        elif state in ("none", "refused", "failed"):
            self._log(
                state,
                logging.WARNING,
                "the predictor cannot read the prompts of %s and predicts from lengths and times alone: %s",
                self.served_model,
                self._why_none if state == "none" else status.message,
            )
