"""Settings of the part that works with LMCache: one typed object, built at the edge, passed down."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.errors import LpcError
from lpc.wire.variables import none_if_empty

Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class LMCacheUnfit(LpcError):
    """LMCache is not there, or so configured that nothing can be done from outside. The message says what to change."""


class LMCacheSettings(BaseSettings):
    """What the coordinator's controller needs to know. Environment variables carry the prefix ``LPC_LMCACHE_``.

    How the sidecar is reached, the served model's name and the share of hints are those of an engine's settings.
    """

    model_config = SettingsConfigDict(env_prefix="LPC_LMCACHE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    watermark: Share = Field(
        default=0.7,
        description="share of a node's memory above which chunks are deleted; below LMCache's --eviction-trigger-watermark "
        "(0.8), or its own LRU comes first",
    )
    disk_bytes: int | None = Field(
        default=None,
        ge=0,
        description="delete chunks from disk or remote storage as well, above so many bytes where LMCache declares no "
        "capacity; 0: only where it declares one; empty: never",
    )
    prefetch_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.5,
        description="share of the memory below the watermark for conversations that are fetched from disk before they are due; "
        "0: none are",
    )
    chunks: int = Field(
        default=200_000,
        ge=1,
        description="chunks that are known, 1.5 KiB each; those used longest ago are forgotten and left to LMCache's own LRU",
    )
    tokenizer: Path | None = Field(
        default=None, description="folder of the served model's tokenizer, which the sidecar is offered; empty: none"
    )
    token_file: Path | None = Field(
        default=None,
        description="file with the token that callers of coordinator and nodes must bring; empty: none, for a closed network",
    )

    _empty_is_none = field_validator("disk_bytes", "tokenizer", "token_file", mode="before")(none_if_empty)

    def token(self) -> str | None:
        """Return the token of ``token_file``; None: none is asked for. Raises LMCacheUnfit: it is empty or cannot be read."""
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            raise LMCacheUnfit(f"LPC_LMCACHE_TOKEN_FILE: {self.token_file} cannot be read: {error.strerror}") from None
        if not token:
            raise LMCacheUnfit(f"LPC_LMCACHE_TOKEN_FILE: {self.token_file} is empty: write a token into it")
        return token
