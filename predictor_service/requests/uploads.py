"""Uploads of tokenizers that engines offer: their files, and which of them are received at a time.

No client can keep the others from sending theirs:

- A client has one upload at a time, from its offer until the tokenizer is loaded. So the queue before the loader, first come
  first served, has at most one of each client.
- Several clients may upload one digest. The first complete and valid upload is loaded; the others end.
- A client whose upload or load fails may not begin another one for PENALTY times the time that it took. Otherwise templates
  that never end would occupy the loader all the time.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Final

from lpc.errors import LpcError
from lpc.wire.tokenizer_files import MAX_BYTES, digest_of
from predictor_service.requests.scratch import Scratch

MAX_UPLOADED: Final = 4 * MAX_BYTES
"""Bytes of all uploads on the disk: received, waiting and being loaded."""
LEAST_UPLOAD: Final = MAX_BYTES // 8
"""A smaller upload counts as this many bytes, which bounds the number of uploads at a time."""
ALONE_S: Final = 3.0
"""Time for which an upload is the only one of its digest: a fleet that starts should not send its tokenizer many times."""
PENALTY: Final = 4.0
FREE_S: Final = 1.0
"""Shorter failures are not punished: a client may be a whole fleet, of which one engine restarts."""


class OfferWaits(LpcError):
    """An offered tokenizer is not accepted now, but later. The message contains the reason."""


class Upload:
    """A client's upload. Not thread-safe.

    Attributes:
        client, name, digest: who has offered it, for which served model, and the offered digest.
        bytes: total of its files.
        began_at: seconds on the clock of `Uploads`.
        whole: whether it was received, so that it waits to be loaded.
    """

    def __init__(
        self, client: str, name: str, digest: str, sizes: Mapping[str, int], began_at: float, scratch: Scratch
    ) -> None:
        self.client = client
        self.name = name
        self.digest = digest
        self.bytes = sum(sizes.values())
        self.began_at = began_at
        self.whole = False
        self._scratch = scratch
        self._next = iter(sizes.items())
        self._folder: Path | None = None
        self._file: FileIO | None = None
        self._left = 0
        self._hash = sha256()
        self._current = ""
        self._digests: dict[str, str] = {}

    @property
    def folder(self) -> Path:
        """The folder of the files, made when it is first needed. Raises OSError."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(dir=self._scratch.folder()))
        return self._folder

    def write(self, data: bytes) -> None:
        """Append bytes, which must not exceed the total. Raises OSError."""
        rest = memoryview(data)
        while len(rest):
            while not self._left:
                self._begin_next()
            assert self._file is not None
            written = self._file.write(rest[: self._left])
            self._hash.update(rest[:written])
            rest = rest[written:]
            self._left -= written

    def received_digest(self) -> str:
        """Close the files, and return the digest of the tokenizer that has arrived. Raises OSError."""
        while self._begin_next():
            pass
        return digest_of(self._digests)

    def delete(self) -> None:
        """Close and delete all files."""
        if self._file is not None:
            self._file.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin_next(self) -> bool:
        """Close the current file and open the next one; return whether there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._digests[self._current] = self._hash.hexdigest()
        self._current, self._left = next(self._next, ("", 0))
        if not self._current:
            return False
        self._file, self._hash = FileIO(self.folder / self._current, "xb"), sha256()
        return True


class Uploads:
    """The uploads that have begun and are neither loaded nor ended. Not thread-safe.

    Args:
        scratch: folder of their files.
        clock: monotonic, seconds.
    """

    def __init__(self, scratch: Scratch, clock: Callable[[], float]) -> None:
        self._scratch = scratch
        self._clock = clock
        self._uploads: dict[str, Upload] = {}
        """Uploads by client."""
        self._rest_until: dict[str, float] = {}
        """Times until which clients may not begin an upload, by client."""

    @property
    def bytes(self) -> int:
        """Bytes on the disk that are reserved."""
        return sum(map(_weight, self._uploads.values()))

    def names(self, client: str) -> dict[str, str]:
        """Return the name of the served model by digest; if several clients send one, this client's."""
        own = [self._uploads[client]] if client in self._uploads else []
        return {upload.digest: upload.name for upload in [*self._uploads.values(), *own]}

    def has(self, digest: str, *, whole: bool = False) -> bool:
        """Return whether there is an upload of a digest; ``whole``: one that was received."""
        return any(upload.digest == digest and (upload.whole or not whole) for upload in self._uploads.values())

    def begin(self, client: str, name: str, digest: str, sizes: Mapping[str, int]) -> Upload:
        """Begin an upload, which :meth:`end` must follow. Raises OfferWaits."""
        now = self._clock()
        if client in self._uploads:
            raise OfferWaits(f"another tokenizer of client {client} is being received or loaded")
        rest_s = self._rest_until.get(client, now) - now
        if rest_s > 0:
            raise OfferWaits(f"a tokenizer of client {client} has failed: its next one is accepted in {rest_s:.0f} s")
        if any(one.digest == digest and now < one.began_at + ALONE_S for one in self._uploads.values()):
            raise OfferWaits("another client sends this tokenizer")
        upload = Upload(client, name, digest, sizes, now, self._scratch)
        if self.bytes + _weight(upload) > MAX_UPLOADED:
            raise OfferWaits("other clients send as many tokenizers as this sidecar receives at a time")
        self._uploads[client] = upload
        return upload

    def end(self, upload: Upload) -> None:
        """Remove an upload."""
        del self._uploads[upload.client]

    def punish(self, client: str, seconds: float) -> None:
        """Let a client wait because of a failure that took ``seconds``."""
        now = self._clock()
        self._rest_until = {one: until for one, until in self._rest_until.items() if until > now}
        if seconds > FREE_S:
            self._rest_until[client] = now + PENALTY * seconds


def _weight(upload: Upload) -> int:
    return max(upload.bytes, LEAST_UPLOAD)
