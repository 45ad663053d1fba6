"""Which engines may pool scores: those whose block hashes mean the same content and whose scores have the same unit."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from eviction_client.score import MEAN_THINK_TIME_S

_ENCODING = 1
"""Raised whenever the canonical encoding changes, so that old and new clients never pool."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that must agree between two engines before a score of the one means anything to the other.

    A block hash is comparable only where algorithm, seed, block size, model, LoRA and salt agree. Scores are in log-odds
    with time in units of tau, so tau must agree too.

    Attributes:
        hash_algorithm: as the engine names it, for example "sha256_cbor".
        hash_seed: what the first block's hash starts from (PYTHONHASHSEED or the version's default), as text.
        block_size: tokens per block (> 0).
        model: name and revision of the served model.
        lora: name of a LoRA adapter that all requests of the engine use; None when there is none or hashes carry it.
        salt: cache salt of the deployment; None when there is none or hashes carry it.
        tau: mean think time, seconds (> 0).

    Raises:
        ValueError: a field lies outside its range.
    """

    hash_algorithm: str
    hash_seed: str
    block_size: int
    model: str
    lora: str | None = None
    salt: str | None = None
    tau: float = MEAN_THINK_TIME_S

    def __post_init__(self) -> None:
        if self.block_size <= 0:
            raise ValueError(f"block_size must be positive, not {self.block_size}")
        if not (self.tau > 0 and math.isfinite(self.tau)):
            raise ValueError(f"tau must be a positive number of seconds, not {self.tau}")

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical encoding, its first 128 bits as 32 hexadecimal digits.

        The encoding is JSON with sorted keys and without spaces: strings are quoted and escaped, so that no two different
        namespaces have one encoding.
        """
        fields = {**asdict(self), "tau": float(self.tau), "encoding": _ENCODING}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]
