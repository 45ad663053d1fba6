"""An entry of the store: an answer with its metadata, and its packed form before encryption."""

import json
import struct
import zlib
from typing import Final, NamedTuple

from response_cache.keys.canonical import NAME_BYTES, EntryId, Scope
from response_cache.keys.sealing import Keyring, Unsealable
from response_cache.store.answers import Answer

PLAIN, DEFLATED = b"\2", b"\3"
"""The first byte of a packed entry. 0 and 1 are not used."""
_read: Final = json.JSONDecoder().decode
_HEAD: Final = struct.Struct(f">I{NAME_BYTES}s")
COMPRESS_FROM: Final = 4096
"""Size in bytes from which compression is worth the time that each hit takes to decompress."""


class Entry(NamedTuple):
    """An answer and the request that it belongs to.

    Attributes:
        client, scope, tenant: owner; compared with the caller again after decryption.
        question: the last turn; empty if there is none.
        answer: the engine's answer.
        stored_at, expires_at: seconds since the epoch.
        generation: generation of the scope at the time of the request.
        partition: name of everything but the last turn; zeros if there is no last turn.
    """

    client: str
    scope: str
    tenant: str
    question: str
    answer: Answer
    stored_at: float
    expires_at: float
    generation: int
    partition: bytes = b""

    def life(self, now: float) -> tuple[float, float]:
        """Return age and remaining life in seconds, both between 0 and the whole life even if the clock was changed."""
        whole = self.expires_at - self.stored_at
        age = min(max(now - self.stored_at, 0.0), whole)
        return age, whole - age

    def belongs_to(self, client: str, scope: str, tenant: str) -> bool:
        """Return whether this client, scope and tenant own the entry."""
        return (self.client, self.scope, self.tenant) == (client, scope, tenant)


def seal(entry: Entry, scope: Scope, name: EntryId, keys: Keyring) -> bytes:
    """Return an entry as an encrypted record that opens only under this name."""
    answer = entry.answer
    head = (
        (entry.client, entry.scope, entry.tenant),
        (entry.question, entry.stored_at, entry.expires_at, entry.generation),
        (
            *(answer.prompt_tokens, answer.completion_tokens, answer.finish_reason, answer.engine_s),
            [len(chunk) for chunk in answer.chunks],
        ),
    )
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    plain = b"".join((_HEAD.pack(len(text), entry.partition), text, *answer.chunks, answer.body))
    packed = PLAIN + plain if len(plain) < COMPRESS_FROM else DEFLATED + zlib.compress(plain)
    return keys.seal(packed, _context(scope, name))


def unseal(record: bytes, scope: Scope, name: EntryId, keys: Keyring) -> Entry:
    """Return the entry of a record. Raises Unsealable if key, name or format differ, or the record is damaged."""
    packed = keys.open(record, _context(scope, name))
    packing = packed[:1]
    if packing not in (PLAIN, DEFLATED):
        raise Unsealable
    try:
        return _entry(zlib.decompress(packed[1:]) if packing == DEFLATED else packed[1:])
    except (ValueError, TypeError, struct.error, zlib.error):
        raise Unsealable from None


def _entry(plain: bytes) -> Entry:
    length, partition = _HEAD.unpack_from(plain)
    start = _HEAD.size + length
    owner, metadata, usage = _read(plain[_HEAD.size : start].decode("utf-8", "surrogatepass"))
    client, scope, tenant = owner
    question, stored_at, expires_at, generation = metadata
    prompt, completion, finish, engine_s, lengths = usage
    chunks = []
    for length in lengths:
        chunks.append(plain[start : start + length])
        start += length
    answer = Answer(tuple(chunks), plain[start:], prompt, completion, finish, engine_s)
    return Entry(client, scope, tenant, question, answer, stored_at, expires_at, generation, partition)


def _context(scope: Scope, name: EntryId) -> bytes:
    return b"entry" + scope + name
