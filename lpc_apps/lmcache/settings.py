"""Settings of the LMCache integration."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.errors import LpcError
from lpc.wire.tokens import token_in
from lpc.wire.variables import none_if_empty

Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class LMCacheUnfit(LpcError):
    """LMCache is missing, unsupported or configured in a way that prevents control from outside."""


class LMCacheSettings(BaseSettings):
    """Settings of the coordinator's controller and of the gate, from environment variables with the prefix ``LPC_LMCACHE_``.

    The sidecar's address and the served model's name come from the plug-in's settings.
    """

    model_config = SettingsConfigDict(env_prefix="LPC_LMCACHE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    watermark: Share = Field(
        default=0.7,
        description="share of a node's memory above which chunks are deleted; must be below LMCache's "
        "--eviction-trigger-watermark (0.8), or LMCache's own LRU evicts first",
    )
    chunks: int = Field(
        default=200_000,
        ge=1,
        description="largest number of chunks tracked, about 2 KiB each; the least recently used are left to LMCache's LRU",
    )
    tokenizer: Path | None = Field(
        default=None, description="folder of the served model's tokenizer, which is offered to the sidecar; empty: none"
    )
    token_file: Path | None = Field(
        default=None,
        description="file with the token that callers of coordinator and nodes must send; empty: none, for a closed network",
    )

    _empty_is_none = field_validator("tokenizer", "token_file", mode="before")(none_if_empty)

    def token(self) -> str | None:
        """Return the token in ``token_file``; None: no token is required. Raises LMCacheUnfit: it is empty or unreadable."""
        return None if self.token_file is None else token_in(self.token_file, LMCacheUnfit)
