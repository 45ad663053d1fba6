"""Settings of the response caches, in addition to those of the sidecar."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from lpc.wire.access import is_loopback
from lpc.wire.redis_settings import parsed, readable
from lpc.wire.variables import none_if_empty
from predictor_service.settings import OWN_FOLDER, ServiceSettings
from response_cache.store.scopes import ScopeSettings


class CacheSettings(ServiceSettings):
    """Settings of a process that serves response caches: the sidecar, or `lpc cache serve`."""

    cache_redis_url: SecretStr | None = Field(
        None,
        description="URL of the Redis of the response caches (docs/how-to/response-caches.md), which stores answers encrypted; "
        "empty: disabled. User and password are percent-encoded. Needs cache_keys and the extra `cache`.",
    )
    cache_redis_password_file: Path | None = Field(
        None, description="File with the password of cache_redis_url, read at each connection."
    )
    cache_redis_cluster: bool = Field(False, description="cache_redis_url is a node of a Redis Cluster.")
    cache_redis_timeout_s: Annotated[float, Field(gt=0, le=10)] = Field(
        0.05, description="Seconds that a lookup waits for Redis before it counts as a miss."
    )
    cache_keys: Path | None = Field(
        None,
        description="File with lines `name: 64 hexadecimal digits`: the key `names`, and the keys that encrypt answers, the "
        "first of which is used for new answers; read again when it changes.",
    )
    cache_gateways: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Clients of the sidecar that may name a tenant in requests to the response caches, separated by commas. "
        "Use the names of your gateways' tokens or certificates, `unix` for the Unix socket, `anonymous` for a port without "
        "authentication.",
    )
    cache_scopes: dict[str, ScopeSettings] = Field(
        default_factory=dict,
        description="Rules of each scope, by name; `default` applies to others. Limits: kind, mode, normalised, "
        "any_temperature, bound, level, max_entries, max_mib, tenant_entries, tenant_mib. Lives: ttl_s, semantic_ttl_s, "
        "time_sensitive, time_sensitive_ttl_s. Evidence: evidence, judge. Warm-up: warm_up. By hand: similarity, pairs. Hits: "
        "question.",
    )
    cache_client_scopes: int = Field(
        64,
        ge=1,
        le=10_000,
        description="Number of scopes that one client may use; calls in further ones are refused (`scopes`).",
    )
    cache_invalidations: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="Limit of Invalidate calls per minute of one client, at each sidecar.",
    )
    cache_max_entry_kib: int = Field(256, ge=1, le=16_384, description="Answers larger than this are not cached, KiB.")

    _empty_cache_is_none = field_validator("cache_redis_password_file", "cache_keys", mode="before")(none_if_empty)

    @field_validator("cache_gateways", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("cache_redis_url")
    @classmethod
    def _cache_url_readable(cls, url: SecretStr | None) -> SecretStr | None:
        return readable(url)

    @model_validator(mode="after")
    def _cache_is_whole(self) -> Self:
        if self.cache_redis_url is None:
            if self.cache_keys is not None or self.cache_scopes or self.cache_gateways:
                raise ValueError(
                    "cache_keys, cache_scopes and cache_gateways need cache_redis_url: response caches store answers in Redis"
                )
            return self
        if self.cache_keys is None:
            raise ValueError("cache_redis_url needs cache_keys: answers are stored encrypted (docs/how-to/response-caches.md)")
        if self.tokens is None and self.tls_client_ca is None and not is_loopback(self.host):
            raise ValueError(
                f"with response caches, callers on {self.host} must have names: set LPC_TOKENS or LPC_TLS_CLIENT_CA "
                "(docs/how-to/security.md), or listen on 127.0.0.1"
            )
        url = parsed(self.cache_redis_url)
        if self.redis_url is not None:
            engines = parsed(self.redis_url)
            if engines.where.replace("localhost", "127.0.0.1") == url.where.replace("localhost", "127.0.0.1"):
                raise ValueError(
                    "cache_redis_url is the same Redis as redis_url, which engines can read: use another for response caches"
                )
        if self.cache_redis_password_file is not None and url.password is not None:
            raise ValueError("cache_redis_url and cache_redis_password_file both contain a password: remove one of them")
        return self

    def _redis_urls(self) -> list[SecretStr]:
        return [*super()._redis_urls(), *([] if self.cache_redis_url is None else [self.cache_redis_url])]

    @property
    def embeds(self) -> bool:
        """Whether a scope's semantic tier is on, so that questions are embedded."""
        return any(scope.semantic != "off" for scope in self.cache_scopes.values())

    @property
    def learns(self) -> bool:
        """Whether a scope has a tier with evidence."""
        return any(scope.learns for scope in self.cache_scopes.values())

    @property
    def model_name(self) -> str:
        """Name of the model to serve. A static encoder's vectors do not tell questions apart, so e5-small embeds them."""
        return "e5-small" if self.embeds and "model" not in self.model_fields_set else self.model

    @property
    def verdicts_file(self) -> Path:
        """File that records which scopes' evidence has turned against them, so that emptying Redis does not undo it."""
        return (self.state or OWN_FOLDER) / "cache-verdicts.json"


class CacheServerSettings(CacheSettings):
    """Settings of `lpc cache serve`: those of a sidecar with response caches, on other ports."""

    port: int = Field(50052, ge=0, le=65535, description="TCP port; 0 chooses a free one.")
    metrics_port: int | None = Field(9096, ge=0, le=65535, description="Port of the Prometheus metrics; empty: disabled.")
    unix_socket: Path | None = Field(OWN_FOLDER / "caches.sock", description="Unix socket for gRPC; empty: disabled.")

    @model_validator(mode="after")
    def _has_a_store(self) -> Self:
        if self.cache_redis_url is None:
            raise ValueError("nothing to serve: set LPC_CACHE_REDIS_URL and LPC_CACHE_KEYS (docs/how-to/response-caches.md)")
        return self
