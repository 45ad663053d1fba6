"""Settings of the part that works with LMCache: one typed object, built at the edge, passed down."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.wire.variables import none_if_empty

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class LMCacheSettings(BaseSettings):
    """What the coordinator's controller needs to know. Environment variables carry the prefix ``LPC_LMCACHE_``.

    How the sidecar is reached is the engines' to say as well: ``LPC_PREDICTOR_ADDRESS`` and its like.
    """

    model_config = SettingsConfigDict(env_prefix="LPC_LMCACHE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    watermark: Share = Field(
        default=0.7,
        description="share of a node's memory above which chunks are deleted; below LMCache's --eviction-trigger-watermark "
        "(0.8), or its own LRU comes first",
    )
    disk_bytes: int = Field(
        default=0,
        ge=0,
        description="bytes of disk or remote storage, where LMCache declares no capacity; 0: no bound",
    )
    evict_disk: bool = Field(
        default=False, description="delete the chunks least worth keeping from disk or remote storage as well"
    )
    prefetch: bool = Field(default=True, description="have conversations that are due fetched from disk into memory")
    prefetch_share: Share = Field(
        default=0.5,
        description="share of the memory below the watermark that fetched conversations may hold until they are used",
    )
    prefetch_used: Share = Field(default=0.6, description="share of the bytes fetched that shall be used")
    prefetch_longest_s: Seconds = Field(default=600.0, description="longest time for which a conversation is fetched ahead")
    chunks: int = Field(
        default=200_000,
        ge=1,
        description="chunks that are known, 1.5 KiB each; those used longest ago are forgotten and left to LMCache's own LRU",
    )
    max_retain_s: Seconds = Field(default=3600.0, description="longest retention that an application may ask for")
    hints_share: Share = Field(
        default=0.1, description="largest share of a node's memory, and of its disk, that retained chunks may take"
    )
    served_model: str = Field(
        default="", description="name under which the sidecar knows the tokenizer; empty: LMCache's name of the model"
    )
    tokenizer: Path | None = Field(
        default=None, description="folder of the served model's tokenizer, which the sidecar is offered; empty: none"
    )
    token: SecretStr | None = Field(
        default=None, description="token that callers of coordinator and nodes must bring; empty: none, for a closed network"
    )
    token_file: Path | None = Field(default=None, description="file that holds the token")

    _empty_is_none = field_validator("tokenizer", "token", "token_file", mode="before")(none_if_empty)
