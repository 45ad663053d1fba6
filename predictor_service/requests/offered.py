"""The tokenizers that engines have offered, on disk: a folder each, named by its digest.

Invariants. What lies under a digest was received whole, and its files have that digest. Names are those of
`tokenizer_files.NAMES`. All together, with what is being received, take at most ``max_bytes``; for a new one those go that
were used longest ago. While a tokenizer is loaded there is a file ``.loading-DIGEST``. One that is left over means that the
sidecar died meanwhile: that tokenizer is not loaded again until an operator deletes the file.
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
"""Silence after which another engine with the same tokenizer is asked for it."""
SLOWEST: Final = 256 * 2**10
"""Bytes per second, at which a tokenizer must come all in all, besides STALLED_S."""
MAX_UPLOADS: Final = 4
"""Tokenizers that one caller may send at a time."""
MAX_HOURLY: Final = 32
"""Tokenizers that one caller may begin to send within an hour."""
MAX_KEPT: Final = 100
"""Tokenizers on disk, however small."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PARTIAL: Final = ".partial-"
_LOADING: Final = ".loading-"


class OfferRefused(LpcError):
    """What an engine offers is not taken. The message says why and what to do."""


class OfferedTokenizers:
    """Keeps them. Thread-safe.

    Args:
        folder: made here, where that is possible.
        max_bytes: of all of them.

    Raises:
        ForeignFolder: another user made the folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._receipts: dict[str, Receipt] = {}
        self._begun: dict[str, list[float]] = {}
        """By caller: when it began to send, within the last hour."""
        with suppress(OSError):  # said when an engine offers one
            make_own(folder)
        for left in folder.glob(f"{_PARTIAL}*"):
            # Of a process that was killed; another that lives may use the same folder.
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > 10 * STALLED_S:
                    shutil.rmtree(left, ignore_errors=True)

    @property
    def max_one(self) -> int:
        """Bytes of one tokenizer."""
        return min(self.max_bytes, MAX_BYTES)

    def find(self, digest: str) -> Path | None:
        """Return the folder of a tokenizer, which counts as used; None where it is not there."""
        if not _DIGEST.fullmatch(digest):
            return None
        found = self.folder / digest
        try:
            os.utime(found)
        except OSError:
            return None
        return found

    def receives(self, digest: str) -> bool:
        """Say whether a tokenizer is being received."""
        receipt = self._receipts.get(digest)
        return receipt is not None and not receipt.stalled

    @contextmanager
    def attempt(self, digest: str) -> Iterator[None]:
        """Mark a tokenizer as being loaded within the block. Raises OfferRefused if the sidecar died in such a block before."""
        path = self.folder / f"{_LOADING}{digest}"
        try:
            file = _locked(path)
        except OSError as error:
            raise OfferRefused(_unwritable(self.folder, error)) from error
        with file:
            if os.fstat(file.fileno()).st_size:
                raise OfferRefused(
                    f"the sidecar died while it loaded this tokenizer: delete {path} to have it tried again, or name its "
                    "folder in LPC_SERVED_MODELS"
                )
            file.write(b"loading")
            file.flush()
            os.fsync(file.fileno())
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def intact(self, digest: str) -> bool:
        """Say whether the files of a tokenizer are still what they were; if not, remove them."""
        folder = self.folder / digest
        with suppress(OSError):
            if digest_of({path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}) == digest:
                return True
        log.warning("the offered tokenizer %s was damaged on disk, and is removed", digest[:12])
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def receive(self, digest: str, sizes: Mapping[str, int], caller: str) -> "Receipt | None":
        """Begin to receive a tokenizer; None: it is being received already.

        Args:
            caller: who sends it.
            sizes: file name to bytes, in the order of the names.

        Raises:
            OfferRefused: it is not taken.
        """
        total = sum(sizes.values())
        if not _DIGEST.fullmatch(digest):
            raise OfferRefused("the digest of the tokenizer is not 64 hexadecimal digits in lower case")
        if NEEDED not in sizes or list(sizes) != [name for name in NAMES if name in sizes]:
            raise OfferRefused(f"the files of a tokenizer are, in this order, any of {', '.join(NAMES)}, with {NEEDED}")
        if total > self.max_one:
            raise OfferRefused(
                f"the tokenizer has {total} bytes, this sidecar takes {self.max_one}: raise LPC_OFFERED_TOKENIZERS_MIB (at "
                f"most {MAX_BYTES} bytes are possible), or name its folder in LPC_SERVED_MODELS"
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
                self._make_room(total)
                partial = self.folder / f"{_PARTIAL}{secrets.token_hex(8)}"
                partial.mkdir(mode=0o700)
            except ForeignFolder as error:
                raise OfferRefused(f"{error} with LPC_STATE") from error
            except OSError as error:
                raise OfferRefused(_unwritable(self.folder, error)) from error
            receipt = self._receipts[digest] = Receipt(self, digest, sizes, partial, caller)
        return receipt

    def _count(self, caller: str, total: int) -> None:
        """Count what a caller begins to send, with the lock held. Raises OfferRefused when it is too much."""
        coming = [receipt.total for receipt in self._receipts.values() if receipt.caller == caller]
        # Half is left to others.
        if len(coming) >= MAX_UPLOADS or (coming and sum(coming) + total > self.max_bytes // 2):
            raise OfferRefused(f"client {caller} is sending {len(coming)} tokenizers already: offer this one again later")
        now = time.monotonic()
        self._begun = {
            name: recent for name, times in self._begun.items() if (recent := [at for at in times if now - at < 3600])
        }
        begun = self._begun.setdefault(caller, [])
        if len(begun) >= MAX_HOURLY:
            raise OfferRefused(f"client {caller} has sent {MAX_HOURLY} tokenizers within an hour: offer this one again later")
        begun.append(now)

    def _make_room(self, wanted: int) -> None:
        """With the lock held."""
        coming = sum(receipt.total for receipt in self._receipts.values())
        kept = sorted((p for p in self.folder.iterdir() if _DIGEST.fullmatch(p.name)), key=lambda path: path.stat().st_mtime)
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in kept}
        while coming + sum(sizes.values()) + wanted > self.max_bytes or len(sizes) >= MAX_KEPT:
            if not sizes:
                raise OfferRefused("other tokenizers are being received: offer this one again later")
            oldest = next(iter(sizes))
            del sizes[oldest]
            shutil.rmtree(oldest, ignore_errors=True)
            log.info(
                "the offered tokenizer %s was removed to make room for another (LPC_OFFERED_TOKENIZERS_MIB)", oldest.name[:12]
            )

    def _ended(self, receipt: "Receipt") -> None:
        if self._receipts.get(receipt.digest) is receipt:
            del self._receipts[receipt.digest]


class Receipt:
    """One tokenizer on its way in. Thread-safe."""

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
        self._over = False
        self._lock = threading.RLock()
        self._heard_at = time.monotonic()
        self._due_at = self._heard_at + STALLED_S + self.total / SLOWEST

    @property
    def stalled(self) -> bool:
        """Whether nothing has come for long, or the whole takes too long."""
        now = time.monotonic()
        return now - self._heard_at > STALLED_S or now > self._due_at

    def write(self, data: bytes) -> bool:
        """Take the next bytes; return whether that was all, and the tokenizer is kept. Raises OfferRefused, and it is over."""
        with self._lock:
            self._heard_at = time.monotonic()
            try:
                if self._over or self.stalled:
                    raise OfferRefused("it came too slowly, and another engine is asked: offer it again")
                self._write(data)
                if not self._left:
                    self._keep()
            except OSError as error:
                self.abandon()
                raise OfferRefused(_unwritable(self._owner.folder, error)) from error
            except OfferRefused:
                self.abandon()
                raise
            return not self._left

    def abandon(self) -> None:
        """Forget what has come so far."""
        with self._lock:
            self._over = True
            if self._file is not None:
                self._file.close()
            shutil.rmtree(self._partial, ignore_errors=True)
            self._owner._ended(self)

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
            raise OfferRefused("more bytes came than were offered")

    def _keep(self) -> None:
        if digest_of(self._digests) != self.digest:
            raise OfferRefused("the files that came do not have the digest that was offered: they changed in between")
        target = self._owner.folder / self.digest
        try:
            self._partial.rename(target)
        except OSError:
            if not target.is_dir():  # else another sidecar has put it there
                raise
            shutil.rmtree(self._partial, ignore_errors=True)
        self._over = True
        self._owner._ended(self)


def _locked(path: Path) -> BinaryIO:
    """Open a file for appending, locked until it is closed; another process that has it is waited for. Raises OSError."""
    while True:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # its last owner has deleted it


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"the sidecar cannot keep tokenizers in {folder} ({error.strerror}): set LPC_STATE to a folder that it "
        "may write, with room for them"
    )
