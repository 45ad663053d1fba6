"""The files of one offered tokenizer, written as their bytes arrive."""

import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from io import FileIO
from pathlib import Path

from lpc.wire.tokenizer_files import digest_of
from predictor_service.requests.scratch import Scratch


class Upload:
    """A client's upload. Not thread-safe.

    Attributes:
        client, name, digest: who has offered it, for which served model, and the offered digest.
        bytes: total of its files.
        began_at: seconds on the clock of `OfferedTokenizers`.
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
