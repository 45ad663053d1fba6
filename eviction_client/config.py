"""Settings of the client: one typed object, built at the engine's edge from flags and environment, passed down."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from eviction_client.score import MEAN_THINK_TIME_S, P_MIN

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ClientSettings(BaseSettings):
    """What an engine needs to know to evict by learned scores. Environment variables carry the prefix ``LPC_``."""

    # Inputs are not shown in errors: a Redis URL may hold a password.
    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, extra="ignore", hide_input_in_errors=True)

    predictor_address: str = Field(
        default="127.0.0.1:50051",
        min_length=1,
        description="gRPC address of the sidecar: host:port, or unix:///path/to/socket",
    )
    served_model: str = Field(default="", description="name under which the sidecar knows this engine's tokenizer")
    predictor_timeout_s: Seconds = Field(default=10.0, description="age at which an answer is worthless")
    predictor_capacity: int = Field(default=8192, ge=1, description="requests remembered; over it the oldest is dropped")

    tau_s: Seconds = Field(default=MEAN_THINK_TIME_S, description="mean think time; the paper's scale is 1/tau")
    prior: float = Field(
        default=0.5, ge=P_MIN, le=1 - P_MIN, description="probability of requests for which no prediction came"
    )

    guard: bool = Field(default=True, description="trust predictions only as far as two shadow caches find that they pay")
    shadow: bool = Field(default=False, description="keep the engine's own order and only report what ours would have hit")
    max_retain_s: Seconds = Field(default=3600.0, description="longest retention that an application's hint may ask for")
    on_unknown_engine: Literal["refuse", "stock"] = Field(
        default="refuse", description="an engine version that was never tested: refuse to start, or start with its own order"
    )

    pooling: Literal["auto", "off", "shared", "fleet"] = Field(
        default="auto",
        description="who else's score a shared block keeps: nobody's, this engine's other conversations', or those of all "
        "engines on one Redis; auto is fleet with a Redis URL and shared without",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="redis://, rediss:// (TLS) or unix:// URL of the fleet's Redis; without it scores stay in this process",
    )
    redis_cluster: bool = Field(default=False, description="the URL is a node of a Redis Cluster")
    redis_shards: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="keys over which scores are spread, equal in the whole fleet; on a cluster about 4 per primary",
    )
    redis_timeout_s: Seconds = Field(default=1.0, description="time for one answer of Redis, and for a connection")
    store_pending_blocks: int = Field(default=200_000, ge=1, description="scores waiting to be written; over it the oldest go")
    store_blocks: int = Field(default=1_000_000, ge=1, description="blocks that the in-memory store remembers")

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        if not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// (TLS) or unix://")
        return url

    @model_validator(mode="after")
    def _fleet_has_a_redis(self) -> Self:
        if self.pooling == "fleet" and self.redis_url is None:
            raise ValueError("pooling=fleet needs a Redis: set LPC_REDIS_URL")
        return self

    @property
    def pools(self) -> Literal["off", "shared", "fleet"]:
        """What ``pooling`` comes to."""
        if self.pooling == "auto":
            return "shared" if self.redis_url is None else "fleet"
        return self.pooling
