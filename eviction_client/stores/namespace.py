"""Namespace of shared claims: engines pool only if equal block hashes mean equal content and claims mean the same."""

import hashlib
import json
from dataclasses import asdict, dataclass

_ENCODING = 4
"""Version of a claim's encoding and meaning. Increase it with any change, so that clients of different versions never pool."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The properties of an engine that determine its block hashes. Engines pool claims only if all are equal.

    Attributes:
        hash_algorithm: the engine's name of it, for example "sha256_cbor".
        hash_seed: seed of the first block's hash (PYTHONHASHSEED or the version's default), as text.
        block_size: tokens per block (> 0).
        model: name and revision of the served model.
        lookahead: tokens after each block that its hash covers (vLLM with EAGLE or MTP).

    Raises:
        ValueError: ``block_size`` is not positive.
    """

    hash_algorithm: str
    hash_seed: str
    block_size: int
    model: str
    lookahead: int = 0

    def __post_init__(self) -> None:
        if self.block_size <= 0:
            raise ValueError(f"block_size must be positive, not {self.block_size}")

    @property
    def digest(self) -> str:
        """The first 128 bits of the SHA-256 of the canonical encoding, 32 hexadecimal digits.

        The encoding is JSON with sorted keys and no spaces: strings are quoted and escaped, so different namespaces have
        different encodings.
        """
        fields = {**asdict(self), "encoding": _ENCODING}
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]
