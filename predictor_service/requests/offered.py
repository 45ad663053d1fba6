"""Tokenizers that engines have offered, on disk: one folder each, named by its digest.

Invariants: a folder is complete, and its files have the digest of its name. File names are those of `tokenizer_files.NAMES`.
All folders and uploads take at most ``max_bytes``; the least recently used folders are removed for a new one. While a tokenizer
is being loaded, a file ``.loading-DIGEST`` exists. If the sidecar dies meanwhile, the file remains, and the tokenizer is not
loaded again until an operator deletes the file.
"""

import fcntl
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from lpc.errors import LpcError
from lpc.wire.tokenizer_files import MAX_BYTES, NAMES, NEEDED, digest_of
from predictor_service.own_folder import ForeignFolder, make_own

log = logging.getLogger(__name__)

STALLED_S: Final = 30.0
"""Time without data after which an upload is abandoned, so that another engine can send the tokenizer."""
MIN_BYTES_PER_S: Final = 256 * 2**10
"""Minimum mean rate of an upload, after an allowance of STALLED_S."""
MAX_UPLOADS: Final = 4
"""Concurrent uploads of one caller."""
MAX_HOURLY: Final = 32
"""Uploads that one caller may begin within an hour."""
MAX_STORED: Final = 100
"""Largest number of tokenizers on disk."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PARTIAL: Final = ".partial-"
_LOADING: Final = ".loading-"


class OfferRefused(LpcError):
    """The sidecar does not accept an offered tokenizer. The message contains the reason and the remedy."""


class OfferedTokenizers:
    """Stores offered tokenizers. Thread-safe.

    Args:
        folder: created if possible.
        max_bytes: limit of all tokenizers together.

    Raises:
        ForeignFolder: another user made the folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._receipts: dict[str, Receipt] = {}
        self._begun: dict[str, list[float]] = {}
        """Start times of each caller's uploads within the last hour."""
        with suppress(OSError):  # reported when an engine offers a tokenizer
            make_own(folder)
        for partial in folder.glob(f"{_PARTIAL}*"):
            # Left by a killed process, if it is old; another running sidecar may use the same folder.
            with suppress(OSError):
                if time.time() - partial.stat().st_mtime > 10 * STALLED_S:
                    shutil.rmtree(partial, ignore_errors=True)

    @property
    def max_one(self) -> int:
        """Largest size of one tokenizer, bytes."""
        return min(self.max_bytes, MAX_BYTES)

    def find(self, digest: str) -> Path | None:
        """Return the folder of a tokenizer, and mark it as used; None: it is not stored."""
        if not _DIGEST.fullmatch(digest):
            return None
        found = self.folder / digest
        try:
            os.utime(found)
        except OSError:
            return None
        return found

    def receives(self, digest: str) -> bool:
        """Return whether a tokenizer is being received."""
        receipt = self._receipts.get(digest)
        return receipt is not None and not receipt.stalled

    @contextmanager
    def attempt(self, digest: str) -> Iterator[None]:
        """Mark a tokenizer as being loaded within the block. Raises OfferRefused if the sidecar has died while loading it."""
        path = self.folder / f"{_LOADING}{digest}"
        try:
            file = _locked(path)
        except OSError as error:
            raise OfferRefused(_unwritable(self.folder, error)) from error
        with file:
            if os.fstat(file.fileno()).st_size:
                raise OfferRefused(
                    f"the sidecar died while it loaded this tokenizer: delete {path} to try again, or set its folder in "
                    "LPC_SERVED_MODELS"
                )
            file.write(b"loading")
            file.flush()
            os.fsync(file.fileno())
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def intact(self, digest: str) -> bool:
        """Return whether a tokenizer's files still have its digest; remove them if they do not."""
        folder = self.folder / digest
        with suppress(OSError):
            if digest_of({path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}) == digest:
                return True
        log.warning("the offered tokenizer %s is damaged on disk: removed", digest[:12])
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def receive(self, digest: str, sizes: Mapping[str, int], caller: str) -> "Receipt | None":
        """Begin an upload; None: the tokenizer is already being received.

        Args:
            sizes: bytes of each file, in the order of `tokenizer_files.NAMES`.
            caller: name of the client that sends it.

        Raises:
            OfferRefused: the sidecar does not accept it.
        """
        total = sum(sizes.values())
        if not _DIGEST.fullmatch(digest):
            raise OfferRefused("the digest of the tokenizer is not 64 hexadecimal digits in lower case")
        if NEEDED not in sizes or list(sizes) != [name for name in NAMES if name in sizes]:
            raise OfferRefused(f"the files of a tokenizer are, in this order, any of {', '.join(NAMES)}, with {NEEDED}")
        if total > self.max_one:
            raise OfferRefused(
                f"the tokenizer has {total} bytes, this sidecar accepts {self.max_one}: raise LPC_OFFERED_TOKENIZERS_MIB (at "
                f"most {MAX_BYTES} bytes are possible), or set its folder in LPC_SERVED_MODELS"
            )
        with self._lock:
            for receipt in list(self._receipts.values()):
                if receipt.stalled:
                    receipt.abandon()
            if digest in self._receipts:
                return None
            self._count(caller, total)
            try:
                make_own(self.folder)
                self._evict(total)
                partial = self.folder / f"{_PARTIAL}{secrets.token_hex(8)}"
                partial.mkdir(mode=0o700)
            except ForeignFolder as error:
                raise OfferRefused(f"{error} with LPC_STATE") from error
            except OSError as error:
                raise OfferRefused(_unwritable(self.folder, error)) from error
            receipt = self._receipts[digest] = Receipt(self, digest, sizes, partial, caller)
        return receipt

    def _count(self, caller: str, total: int) -> None:
        """Count a caller's upload, with the lock held. Raises OfferRefused: the caller has exceeded a limit."""
        pending = [receipt.total for receipt in self._receipts.values() if receipt.caller == caller]
        # One caller gets at most half of the space.
        if len(pending) >= MAX_UPLOADS or (pending and sum(pending) + total > self.max_bytes // 2):
            raise OfferRefused(f"client {caller} is already sending {len(pending)} tokenizers: offer this one again later")
        now = time.monotonic()
        self._begun = {
            name: recent for name, times in self._begun.items() if (recent := [at for at in times if now - at < 3600])
        }
        begun = self._begun.setdefault(caller, [])
        if len(begun) >= MAX_HOURLY:
            raise OfferRefused(f"client {caller} has sent {MAX_HOURLY} tokenizers within an hour: offer this one again later")
        begun.append(now)

    def _evict(self, needed: int) -> None:
        """Remove the least recently used tokenizers, with the lock held. Raises OfferRefused."""
        pending = sum(receipt.total for receipt in self._receipts.values())
        stored = sorted((p for p in self.folder.iterdir() if _DIGEST.fullmatch(p.name)), key=lambda path: path.stat().st_mtime)
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in stored}
        while pending + sum(sizes.values()) + needed > self.max_bytes or len(sizes) >= MAX_STORED:
            if not sizes:
                raise OfferRefused("other tokenizers are being received: offer this one again later")
            oldest = next(iter(sizes))
            del sizes[oldest]
            shutil.rmtree(oldest, ignore_errors=True)
            log.info("removed the offered tokenizer %s in favour of another (LPC_OFFERED_TOKENIZERS_MIB)", oldest.name[:12])

    def _remove(self, receipt: "Receipt") -> None:
        if self._receipts.get(receipt.digest) is receipt:
            del self._receipts[receipt.digest]


class Receipt:
    """One upload. Thread-safe."""

    def __init__(self, owner: OfferedTokenizers, digest: str, sizes: Mapping[str, int], partial: Path, caller: str) -> None:
        self.digest = digest
        self.caller = caller
        self.total = sum(sizes.values())
        self._owner = owner
        self._partial = partial
        self._left = list(sizes.items())
        self._digests: dict[str, str] = {}
        self._file: BinaryIO | None = None
        self._hash: Any = None
        self._ended = False
        self._lock = threading.RLock()
        self._data_at = time.monotonic()
        self._due_at = self._data_at + STALLED_S + self.total / MIN_BYTES_PER_S

    @property
    def stalled(self) -> bool:
        """Whether no data has arrived for STALLED_S, or the upload is too slow."""
        now = time.monotonic()
        return now - self._data_at > STALLED_S or now > self._due_at

    def write(self, data: bytes) -> bool:
        """Write the next bytes; return whether the tokenizer is complete and stored. Raises OfferRefused: the upload failed."""
        with self._lock:
            self._data_at = time.monotonic()
            try:
                if self._ended or self.stalled:
                    raise OfferRefused("the upload was too slow, so that another engine may send the tokenizer: offer it again")
                self._write(data)
                if not self._left:
                    self._store()
            except OSError as error:
                self.abandon()
                raise OfferRefused(_unwritable(self._owner.folder, error)) from error
            except OfferRefused:
                self.abandon()
                raise
            return not self._left

    def abandon(self) -> None:
        """Discard the upload."""
        with self._lock:
            self._ended = True
            if self._file is not None:
                self._file.close()
            shutil.rmtree(self._partial, ignore_errors=True)
            self._owner._remove(self)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while self._left:
            name, missing = self._left[0]
            if self._file is None:
                self._file, self._hash = (self._partial / name).open("xb"), sha256()
            part, view = view[:missing], view[missing:]
            self._file.write(part)
            self._hash.update(part)
            if len(part) < missing:
                self._left[0] = name, missing - len(part)
                return
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._digests[name] = self._hash.hexdigest()
            del self._left[0]
        if view:
            raise OfferRefused("the upload has more bytes than were offered")

    def _store(self) -> None:
        if digest_of(self._digests) != self.digest:
            raise OfferRefused("the uploaded files do not have the offered digest: they have changed since the offer")
        target = self._owner.folder / self.digest
        try:
            self._partial.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another sidecar has stored it
                raise
            shutil.rmtree(self._partial, ignore_errors=True)
        self._ended = True
        self._owner._remove(self)


def _locked(path: Path) -> BinaryIO:
    """Open a file for appending, locked until it is closed; wait if another process has locked it. Raises OSError."""
    while True:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # the process that had locked it has deleted it


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"the sidecar cannot store tokenizers in {folder} ({error.strerror}): set LPC_STATE to a writable folder with enough "
        "space"
    )
