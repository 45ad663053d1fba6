"""The keys of the response caches, read again when their file changes."""

from pathlib import Path

from lpc.responses.sealing import KeyFileError, Keyring, read_keys
from lpc.wire.watched import Watched


class Keys(Watched[Keyring]):
    """The keys in force.

    Args:
        path: of the key file.

    Raises:
        KeyFileError: it cannot be used, or `cryptography` is missing.
    """

    def __init__(self, path: Path) -> None:
        names: list[bytes] = []

        def read() -> Keyring:
            ring = read_keys(path)
            if names and ring.names != names[0]:
                raise KeyFileError(f"{path} has another line `names`: that takes effect with a restart")
            names[:] = [ring.names]
            return ring

        super().__init__([path], read, "key file of the response caches is")

    @property
    def ring(self) -> Keyring:
        """The keys."""
        return self.current
