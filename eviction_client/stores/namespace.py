"""Which engines may pool scores: those whose block hashes mean the same content and whose scores mean the same."""

import hashlib
import json
from dataclasses import asdict, dataclass

_ENCODING = 2
"""Raised whenever the encoding or the meaning of a score changes, so that old and new clients never pool: 1 was log-odds, 2 is
seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that must agree between two engines before a score of the one means anything to the other.

    A block hash is comparable only where algorithm, seed, block size, model, LoRA and salt agree.

    Attributes:
        hash_algorithm: as the engine names it, for example "sha256_cbor".
        hash_seed: what the first block's hash starts from (PYTHONHASHSEED or the version's default), as text.
        block_size: tokens per block (> 0).
        model: name and revision of the served model.
        lora: name of a LoRA adapter that all requests of the engine use; None when there is none or hashes carry it.
        salt: cache salt of the deployment; None when there is none or hashes carry it.

    Raises:
        ValueError: a field lies outside its range.
    """

    hash_algorithm: str
    hash_seed: str
    block_size: int
    model: str
    lora: str | None = None
    salt: str | None = None

    def __post_init__(self) -> None:
        if self.block_size <= 0:
            raise ValueError(f"block_size must be positive, not {self.block_size}")

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical encoding, its first 128 bits as 32 hexadecimal digits.

        The encoding is JSON with sorted keys and without spaces: strings are quoted and escaped, so that no two different
        namespaces have one encoding.
        """
        fields = {**asdict(self), "encoding": _ENCODING}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]
