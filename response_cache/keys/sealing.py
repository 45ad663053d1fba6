"""Encryption of records: AES-256-GCM under keys from a file, each record bound to its location in Redis.

The key file has lines ``name: 64 hexadecimal digits``; ``#`` begins a comment. ``names`` is the key of the names in the store
(`canonical.Namer`): if it changes, all entries become unfindable. The first other key encrypts; the rest only decrypt. To
rotate a key, add the new one below the first, move it to the top, and remove the old one after the longest time to live.
Reload all sidecars between these steps.

A sealed record is ``1 | id of the key (4) | nonce (12) | ciphertext and tag``. Its associated data are its kind, scope and id,
so that a record copied to another location does not decrypt. Nonces are random, so that a key is safe for 2^32 records.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lpc.errors import LpcError
from lpc.wire.tokens import read_named_keys
from lpc.wire.watched import Watched

NAMES: Final = "names"
VERSION: Final = b"\x01"
KEY_ID_BYTES: Final = 4
NONCE_BYTES: Final = 12
_HEAD: Final = len(VERSION) + KEY_ID_BYTES + NONCE_BYTES
HOW: Final = "write the lines `names: ...` and `k1: ...`, each with what `openssl rand -hex 32` prints"


class KeyFileError(LpcError):
    """The key file of the response caches is invalid. The message does not quote it."""


class Unsealable(Exception):
    """A record cannot be decrypted: it has another key or location, or is damaged."""


class Keyring:
    """The keys of one file. Thread-safe.

    Args:
        names: key of the names in the store, 32 bytes.
        keys: keys of 32 bytes by name; the first one encrypts.
    """

    def __init__(self, names: bytes, keys: Mapping[str, bytes]) -> None:
        self.names = names
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys.values()}
        self._current = next(iter(self._ciphers))

    def seal(self, plain: bytes, place: bytes) -> bytes:
        """Return an encrypted record that opens only at ``place``: its kind, scope and id."""
        nonce = os.urandom(NONCE_BYTES)
        return b"".join((VERSION, self._current, nonce, self._ciphers[self._current].encrypt(nonce, plain, place)))

    def open(self, record: bytes, place: bytes) -> bytes:
        """Return the decrypted content of a record. Raises Unsealable."""
        cipher = self._ciphers.get(record[1 : 1 + KEY_ID_BYTES])
        if record[:1] != VERSION or cipher is None or len(record) < _HEAD:
            raise Unsealable
        try:
            return cipher.decrypt(record[1 + KEY_ID_BYTES : _HEAD], record[_HEAD:], place)
        except InvalidTag:
            raise Unsealable from None


def read_keys(path: Path) -> Keyring:
    """Return the keys of a file. Raises KeyFileError."""
    keys: dict[str, bytes] = {}
    for where, name, key in read_named_keys(path, KeyFileError, line="name: key", how=HOW):
        if name in keys:
            raise KeyFileError(f"{where}: duplicate name {name}")
        if key in keys.values():
            raise KeyFileError(f"{where}: duplicate key: generate one for each line")
        keys[name] = key
    names = keys.pop(NAMES, None)
    if names is None or not keys:
        raise KeyFileError(f"{path} lacks {'the line `names`' if names is None else 'a key for encryption'}: {HOW}")
    return Keyring(names, keys)


class Keys(Watched[Keyring]):
    """The current keys.

    Args:
        path: path of the key file.

    Raises:
        KeyFileError: the file is invalid.
    """

    def __init__(self, path: Path) -> None:
        names: list[bytes] = []

        def read() -> Keyring:
            ring = read_keys(path)
            if names and ring.names != names[0]:
                raise KeyFileError(f"{path} has another key `names`: restart to use it")
            names[:] = [ring.names]
            return ring

        super().__init__([path], read, "key file of the response caches is")


def _key_id(key: bytes) -> bytes:
    return sha256(b"lpc response cache key" + key).digest()[:KEY_ID_BYTES]
