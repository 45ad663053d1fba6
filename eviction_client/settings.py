"""Settings of the client: one typed object, built at the engine's edge from flags and environment, passed down."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from eviction_client.policy.rules import AUTO, RuleName
from eviction_client.schedule.warm_first import OVERTAKE_S
from eviction_client.tenants import MOST_TENANTS
from lpc.wire.access import stays_on_this_machine
from lpc.wire.addresses import target
from lpc.wire.certificates import CertificateFiles
from lpc.wire.redis_settings import RedisSettings
from lpc.wire.variables import none_if_empty

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class ClientSettings(RedisSettings):
    """What a plug-in needs to know. Environment variables carry the prefix ``LPC_``."""

    # Inputs are not shown in errors: a Redis URL may hold a password.
    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, extra="ignore", hide_input_in_errors=True)

    predictor_address: Annotated[str, AfterValidator(target)] = Field(
        default="127.0.0.1:50051",
        min_length=1,
        description="gRPC address of the sidecar: host:port, [IPv6]:port or unix:///path/to/socket. If a name has several "
        "addresses (a headless service), each is a sidecar, and the plug-in asks up to four",
    )
    predictor_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed the sidecar's certificate; with it TLS is spoken"
    )
    predictor_token_file: Path | None = Field(
        default=None,
        description="file with the token that the sidecar knows this engine by, read at each connection: a new one needs no "
        "restart",
    )
    served_model: str = Field(
        default="",
        description="name under which the sidecar knows the tokenizer; empty: the engine's or LMCache's name of the model",
    )

    rule: RuleName = Field(
        default=AUTO,
        description="how blocks are ordered. auto: a guard puts the one of all but wa in force that a "
        "ghost cache shows to hit most; a name forces that rule",
    )
    shadow: bool = Field(
        default=False, description="dry run: keep the engine's own order and only report what the plug-in's would hit"
    )
    log_misses: bool = Field(
        default=False,
        description="log at INFO, for each finished request, its prompt tokens by source: cached, evicted, changed and others, "
        "with the engine's id of the request. No text",
    )
    lru_file: Path = Field(
        default=Path("/tmp/lpc-lru"),
        description="while this file exists, the engine has its own order, as without the plug-in, but predictions and ghost "
        "caches go on. The plug-in looks for it every second: touch it to roll back without a restart. It must belong to root "
        "or to the engine's user",
    )
    state: Path | None = Field(
        default=None,
        description="folder in which the plug-in keeps what it has learned, up to 17 MB, for the restarted engine. Engines and "
        "ranks may share it. It is written every five minutes, and at shutdown if vllm serve waits for its engine "
        "(--shutdown-timeout 30; by default it kills it at once). vLLM names equal blocks alike after a restart "
        "only with PYTHONHASHSEED=0. Empty: a restarted engine learns from the beginning",
    )
    list_prefixes: int = Field(
        default=0,
        ge=0,
        le=200,
        description="prompts' beginnings that were reused most, of which the plug-in keeps the token ids in a file in "
        "LPC_STATE, for `lpc warm` after a restart of vLLM. Token ids are text to anyone with the tokenizer. 0: none",
    )
    keep_waiting: bool = Field(
        default=True, description="evict last what waiting requests will hit, those needed soonest the very last"
    )
    load_or_compute: bool = Field(
        default=True,
        description="load from vLLM's CPU offload tier what takes requests less time than to compute it, as measured; false: "
        "load all that it has, as vLLM does",
    )
    schedule: Literal["fcfs", "warm-first"] = Field(
        default="warm-first",
        description="which waiting request vLLM serves next. fcfs: the first that came. warm-first: while the cache thrashes, "
        "of those that miss at most half of their prompt the one that misses least, before older ones within a bound",
    )
    overtake_s: float = Field(
        default=OVERTAKE_S,
        ge=0.0,
        le=3600.0,
        allow_inf_nan=False,
        description="under warm-first: prefill by which later requests may overtake a waiting one, in seconds; 0: first come, "
        "first served",
    )
    hints_share: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="act on the hints lpc_retain_seconds and lpc_done of requests: the largest share of the cache, and of each "
        "tier, that retained blocks may take, such as 0.1; 0: hints do nothing. Anyone who may use the engine's API may send "
        "them",
    )
    tenant_floors: Annotated[Mapping[str, Share], NoDecode] = Field(
        default={},
        description="shares of vLLM's cache that tenants do not lose to others, as digest=share with commas between, such as "
        "d8bb14d833d59559=0.2. The digest is of the tenant's cache salt: printf %s SALT | b2sum -l 64. A floor lapses after "
        "30 minutes without a request",
    )
    on_unknown_engine: Literal["refuse", "stock"] = Field(
        default="stock",
        description="where the check at start finds that the plug-in does not work in this engine: start with the engine's own "
        "order (stock), or refuse to start",
    )

    pooling: Literal["auto", "off", "shared", "fleet"] = Field(
        default="auto",
        description="whether engines on one Redis pool their conversations' claims on blocks (fleet) or not (off; shared, of "
        "former releases, is the same). auto is fleet with a Redis URL, else off",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="redis://, rediss:// (TLS) or unix:// URL of the fleet's Redis; without it engines share nothing",
    )
    redis_shards: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="Redis keys that hold the shared blocks, equal in the whole fleet; on a cluster about 4 per primary",
    )

    _empty_is_none = field_validator("predictor_ca", "predictor_token_file", "state", mode="before")(none_if_empty)

    @field_validator("predictor_address", mode="before")
    @classmethod
    def _has_no_password(cls, address: object) -> object:
        # Logs and messages name the address.
        if isinstance(address, str) and "@" in address and not address.startswith("unix"):
            raise ValueError("an address has no user or password: write host:port, and set predictor_token_file")
        return address

    @field_validator("tenant_floors", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else []
        return {digest.strip(): share for digest, _, share in (part.partition("=") for part in parts)} if parts else value or {}

    @field_validator("tenant_floors")
    @classmethod
    def _fit_into_the_cache(cls, floors: Mapping[str, float]) -> Mapping[str, float]:
        if not all(re.fullmatch("[0-9a-f]{16}", digest) for digest in floors):
            raise ValueError("tenant_floors must be digest=share with commas between: printf %s SALT | b2sum -l 64")
        if sum(floors.values()) > 1.0 or len(floors) > MOST_TENANTS:
            raise ValueError(f"tenant_floors must have at most {MOST_TENANTS} tenants, whose shares add up to at most 1")
        return floors

    @model_validator(mode="after")
    def _fleet_has_a_redis(self) -> Self:
        if self.pooling == "fleet" and self.redis_url is None:
            raise ValueError("pooling=fleet needs a Redis: set LPC_REDIS_URL")
        return self

    @model_validator(mode="after")
    def _lists_into_a_folder(self) -> Self:
        if self.list_prefixes and self.state is None:
            raise ValueError("list_prefixes needs a folder for the list: set LPC_STATE")
        return self

    @property
    def pools(self) -> Literal["off", "fleet"]:
        """What ``pooling`` comes to."""
        if self.pooling == "fleet" or (self.pooling == "auto" and self.redis_url is not None):
            return "fleet"
        return "off"

    @model_validator(mode="after")
    def _access_is_whole(self) -> Self:
        if self.client_certificate is not None and self.predictor_ca is None and not self.speaks_tls_to_redis:
            raise ValueError("client_certificate needs predictor_ca: set it to the authority of the sidecar's certificate")
        if (
            self.predictor_token_file is not None
            and self.predictor_ca is None
            and not stays_on_this_machine(self.predictor_address)
        ):
            raise ValueError(
                "predictor_token_file: the token would travel in clear; set predictor_ca, or reach the sidecar on this machine"
            )
        return self

    @property
    def predictor_files(self) -> CertificateFiles:
        """Certificates for the sidecar."""
        return CertificateFiles(self.client_certificate, self.client_key, self.predictor_ca)
