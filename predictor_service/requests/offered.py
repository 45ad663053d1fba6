"""The tokenizers that engines have offered, on disk: a folder each, named by its digest.

Invariants. What lies under a digest was received whole, and its files have that digest. Names are those of
`tokenizer_files.NAMES`. All together, with what is being received, take at most ``max_bytes``; for a new one those go that
were used longest ago.
"""

import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from lpc.errors import LpcError
from lpc.wire.tokenizer_files import MAX_BYTES, NAMES, NEEDED, digest_of
from predictor_service.own_folder import ForeignFolder, make_own

log = logging.getLogger(__name__)

STALLED_S: Final = 30.0
"""Silence after which another engine with the same tokenizer is asked for it."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PARTIAL: Final = ".partial-"


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
        return digest in self._receipts

    def intact(self, digest: str) -> bool:
        """Say whether the files of a tokenizer are still what they were; if not, remove them."""
        folder = self.folder / digest
        with suppress(OSError):
            if digest_of({path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}) == digest:
                return True
        log.warning("the offered tokenizer %s was damaged on disk, and is removed", digest[:12])
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def receive(self, digest: str, sizes: Mapping[str, int]) -> "Receipt | None":
        """Begin to receive a tokenizer; None: it is being received already.

        Args:
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
            other = self._receipts.get(digest)
            if other is not None and not other.stalled:
                return None
            if other is not None:
                other.abandon()
            try:
                make_own(self.folder)
                self._make_room(total)
                partial = self.folder / f"{_PARTIAL}{secrets.token_hex(8)}"
                partial.mkdir(mode=0o700)
            except ForeignFolder as error:
                raise OfferRefused(f"{error} with LPC_OFFERED_TOKENIZERS") from error
            except OSError as error:
                raise OfferRefused(_unwritable(self.folder, error)) from error
            receipt = self._receipts[digest] = Receipt(self, digest, sizes, partial)
        return receipt

    def _make_room(self, wanted: int) -> None:
        """With the lock held."""
        coming = sum(receipt.total for receipt in self._receipts.values())
        kept = sorted((p for p in self.folder.iterdir() if _DIGEST.fullmatch(p.name)), key=lambda path: path.stat().st_mtime)
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in kept}
        while coming + sum(sizes.values()) + wanted > self.max_bytes:
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
    """One tokenizer on its way in. Used by one thread at a time, but for :meth:`abandon`."""

    def __init__(self, owner: OfferedTokenizers, digest: str, sizes: Mapping[str, int], partial: Path) -> None:
        self.digest = digest
        self.total = sum(sizes.values())
        self._owner = owner
        self._partial = partial
        self._left = list(sizes.items())
        self._digests: dict[str, str] = {}
        self._file: BinaryIO | None = None
        self._hash: Any = None
        self._over = False
        self._heard_at = time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether nothing has come for long."""
        return time.monotonic() - self._heard_at > STALLED_S

    def write(self, data: bytes) -> bool:
        """Take the next bytes; return whether that was all, and the tokenizer is kept. Raises OfferRefused, and it is over."""
        self._heard_at = time.monotonic()
        try:
            if self._over:
                raise OfferRefused("nothing came for too long, and another engine was asked: offer it again")
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


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"the sidecar cannot keep tokenizers in {folder} ({error.strerror}): set LPC_OFFERED_TOKENIZERS to a folder that it "
        "may write, with room for them"
    )
