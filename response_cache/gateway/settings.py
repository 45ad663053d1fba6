"""Settings of the gateway, from flags and environment."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from lpc.errors import UsageError
from lpc.requests.repair import rules_of
from lpc.wire.addresses import url_with_brackets
from lpc.wire.http_server import SHIPPED, Patience
from lpc.wire.redis_settings import readable
from lpc.wire.server_settings import ServerSettings
from lpc.wire.variables import none_if_empty
from response_cache.gateway.targets import ENTRY, OWN

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

EVERYONE = "*"
"""Key in `gateway_scopes` for all other clients."""
_FIELD = re.compile(r"[A-Za-z0-9_-]+")
_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Bounds:
    """Limits that are not settings; tests use others.

    Attributes:
        wait_s: seconds that a request waits for an identical one in flight; 0: none waits.
        max_values: commas, colons and opening brackets outside of strings in the JSON of one body; over it 413. Each blocks
            the gateway for about 1 microsecond. Token ids take less: 16 of a list count as one, except in chats.
        body_timeout_s: total seconds to receive one body; over it 408.
        max_answer_bytes: longest answer that is recorded.
        connect_timeout_s: timeout of connecting to an engine, seconds.
        probe_interval_s: seconds between probes of an engine that is down.
        idle_s: seconds without an answer after which an engine that is up is probed.
        check_look_s: seconds between looks for an engine whose hits can be checked.
        check_wait_s: seconds for which a request waits to be checked; after them its blocks may be evicted.
        check_timeout_s: timeout of one request of a hit check, seconds.
        check_rest: times of a check's seconds for which its engine is not checked again. 49: checks take 2% of its time.
        patience: when connections of slow clients are closed.
    """

    wait_s: float = 120.0
    max_values: int = 100_000
    body_timeout_s: float = 60.0
    max_answer_bytes: int = 2**20
    connect_timeout_s: float = 2.0
    probe_interval_s: float = 0.5
    idle_s: float = 5.0
    check_look_s: float = 0.25
    check_wait_s: float = 60.0
    check_timeout_s: float = 120.0
    check_rest: float = 49.0
    patience: Patience = SHIPPED


class GatewaySettings(ServerSettings):
    """The operator's settings. Flags override the environment.

    The sidecar's address is in :class:`eviction_client.settings.ClientSettings` (LPC_PREDICTOR_...).
    """

    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, extra="ignore", hide_input_in_errors=True)

    port: int = Field(8080, ge=0, le=65535, description="TCP port; 0 selects a free one.")
    metrics_port: int | None = Field(9095, ge=0, le=65535, description="Port of the Prometheus metrics; empty: none.")
    drain_timeout_s: float = Field(30.0, ge=0, description="Seconds for requests in flight to finish at shutdown.")

    gateway_engines: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8000",),
        description="Base URLs of the engines, separated by commas, without /v1. They must serve the same models.",
    )
    gateway_router: Literal["cost", "hash"] = Field(
        "cost",
        description="How the engine of a request is chosen. cost: seconds of prefill that wait there, plus 11 times the "
        "seconds that the request would miss there; hash: by the conversation alone, while the engine is not overloaded.",
    )
    gateway_queue: Literal["off", "warm-first"] = Field(
        "warm-first",
        description="warm-first: hold requests while an engine's prefill is busy. They are handed on with mostly cached "
        "prompts first, within a bound, so that agents beyond the cache do not lose it. off: engines' own queues alone.",
    )
    gateway_queue_timeout_s: Seconds = Field(600.0, description="Seconds for which a request is held; over it 503.")
    gateway_engine_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of each engine's KV cache, for LPC_GATEWAY_QUEUE; empty: the engines are asked (vLLM's /metrics, "
        "SGLang's /server_info).",
    )
    gateway_redis_url: SecretStr | None = Field(
        None,
        description="redis://, rediss:// (TLS) or unix:// URL of a Redis through which gateways before the same engines "
        "share their requests, so that all choose alike. Needs LPC_GATEWAY_SALT_KEY_FILE, the same for all.",
    )
    gateway_redis_password_file: Path | None = Field(
        None, description="File with the password of gateway_redis_url, read at each connection."
    )
    gateway_redis_ca: Path | None = Field(
        None, description="PEM file of the certificate authorities of that Redis; empty: those of the system."
    )
    gateway_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Additional requests to proxy, as `METHOD /path` separated by commas; `*` matches one segment. Do not "
        "add administrative paths of engines, which clients would reach with the engine's key.",
    )
    gateway_engine_key: SecretStr | None = Field(
        None, description="API key of the engines. Requires tokens; without tokens clients send their own key."
    )
    gateway_engine_ca: Path | None = Field(
        None, description="PEM file of the certificate authority for https:// engines; default: the system's authorities."
    )
    gateway_identity_headers: Annotated[tuple[str, ...], NoDecode] = Field(
        (
            *("authorization", "api-key", "x-api-key"),
            *("openai-organization", "openai-project", "x-forwarded-user", "cookie"),
        ),
        description="Header fields that identify a caller, separated by commas. Callers that differ in one share nothing. A "
        "proxy before the gateway must set or remove those that are not credentials, because the gateway trusts them.",
    )
    gateway_cache_anonymous: bool = Field(
        False,
        description="Also cache answers for callers that only a credential (authorization, api-key, x-api-key) or nothing "
        "identifies. Callers with the same credential then share answers.",
    )
    gateway_salt_key_file: Path | None = Field(
        None,
        description="File with a secret of at least 32 characters, the same for all gateways of an engine. Cache salts and "
        "names of conversations are derived from it and the tenant. Without it each start creates a new secret, and "
        "engines' caches begin cold.",
    )
    gateway_hints: Literal["off", "vllm", "sglang"] = Field(
        "off",
        description="Kind of engine, vllm or sglang, to which the gateway forwards how long a client wants its prompt cached "
        "(cache_control, prompt_cache_options, prompt_cache_retention). The engine limits the effect by LPC_HINTS_SHARE.",
    )
    gateway_engine_kind: Literal["auto", "any", "vllm", "sglang"] = Field(
        "auto",
        description="Kind of all engines: the caches then also give one answer to requests that only this kind reads alike. "
        "auto: what LPC_GATEWAY_HINTS names, else what the engines say; any: both kinds, or unknown.",
    )
    gateway_scopes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description='JSON: scopes that each client may name in x-lpc-scope, {"client": ["faq"], "*": ["code"]}; "*" means all '
        "other clients. Without x-lpc-scope the scope is `default`.",
    )

    gateway_repair: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Rules by which bodies are repaired, separated by commas, such as `move-time,tool-order`; empty: none is "
        "changed. `lpc why LOG --repair` names those that pay for a log. Rules change what the model reads.",
    )
    gateway_repair_scopes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description='JSON: rules of a scope (x-lpc-scope) in place of gateway_repair, {"code": ["tool-order"], "faq": []}.',
    )
    gateway_repair_dry_run: bool = Field(
        False, description="Count what the rules of gateway_repair would change, and change nothing."
    )
    gateway_repair_left_share: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="Share of the conversations that is left as it is, so that metrics compare the hits of both groups.",
    )

    gateway_prefix_header: bool = Field(
        False,
        description="Send x-lpc-prefix with completions: prompt tokens, expected and cached, and why tokens are missing. Of "
        "streams what is expected only, because their first bytes come before a report.",
    )

    gateway_check_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the completions whose hits are checked: an idle engine gets the prompt again, cached and "
        "computed, and the log-probabilities are compared. Checks take at most 2% of an engine's time. 0: none.",
    )
    gateway_check_in_flight: int = Field(
        0,
        ge=0,
        description="Requests in an engine up to which it counts as idle for LPC_GATEWAY_CHECK_SHARE. Above 0 a check may slow "
        "these requests.",
    )

    gateway_cache: bool = Field(True, description="Use the sidecar's response caches; false: a plain proxy.")
    gateway_lookup_timeout_s: Seconds = Field(
        0.04,
        le=10,
        description="Timeout of a look-up, after which the request goes to an engine. With the default, a silent sidecar "
        "adds less than 50 ms.",
    )
    gateway_max_held_bytes: int = Field(
        256 * 2**20, ge=1024, description="Bytes of the bodies of all requests in progress; over it 503."
    )
    gateway_max_requests: int = Field(2048, ge=1, description="Concurrent requests; over it 503.")
    gateway_max_connections: int = Field(
        8192,
        ge=16,
        description="Connections of clients; at most half of the descriptors (`ulimit -n`) without 128. At the limit a new "
        "connection replaces the one that has waited longest for a request.",
    )
    gateway_max_connections_per_address: int | None = Field(
        None,
        ge=1,
        description="Connections of one client address; empty: not limited. Set it only if clients connect directly: behind a "
        "proxy all have its address.",
    )

    _empty_is_none_too = field_validator(
        "gateway_engine_key",
        "gateway_engine_ca",
        "gateway_engine_tokens",
        "gateway_salt_key_file",
        "gateway_redis_url",
        "gateway_redis_password_file",
        "gateway_redis_ca",
        "gateway_max_connections_per_address",
        mode="before",
    )(none_if_empty)

    @field_validator("gateway_engines", "gateway_paths", "gateway_identity_headers", "gateway_repair", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("gateway_engines")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if not urls:
            raise ValueError("name at least one engine: LPC_GATEWAY_ENGINES=http://engine:8000")
        bracketed = []
        for url in urls:
            # Logs and metrics name the engines, so an address contains no secret.
            try:
                bracketed.append(url_with_brackets(url))
                parts = urlsplit(bracketed[-1])
                valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:
                valid = False
            if not valid or "@" in url or parts.query or parts.fragment:
                raise ValueError(
                    "each engine must be http://host:port or https://host:port, without a user or password: "
                    "LPC_GATEWAY_ENGINE_KEY is the engines' key"
                )
            if parts.path.rstrip("/").endswith("/v1"):
                raise ValueError("remove /v1 from the engine's address: the client adds it")
        if len(set(bracketed)) < len(urls):
            raise ValueError("an engine is named twice")
        return tuple(url.rstrip("/") for url in bracketed)

    @field_validator("gateway_redis_url")
    @classmethod
    def _redis_is_readable(cls, url: SecretStr | None) -> SecretStr | None:
        return readable(url)

    @field_validator("gateway_identity_headers")
    @classmethod
    def _are_fields(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_FIELD.fullmatch(name) for name in names):
            raise ValueError("each identity header must be the name of a header field, such as x-forwarded-user")
        return tuple(name.lower() for name in names)

    @field_validator("gateway_paths")
    @classmethod
    def _are_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for entry in paths:
            if not ENTRY.fullmatch(entry) or entry.partition(" ")[2].startswith(OWN):
                raise ValueError(
                    "each path must be `METHOD /path` and not below /lpc/, such as LPC_GATEWAY_PATHS='GET /v1/responses/*'"
                )
        return paths

    @field_validator("gateway_repair")
    @classmethod
    def _are_rules(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            rules_of(names)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return names

    @field_validator("gateway_repair_scopes")
    @classmethod
    def _are_rules_of_scopes(cls, scopes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {scope: cls._are_rules(names) for scope, names in cls._are_scopes_by_name(scopes).items()}

    @classmethod
    def _are_scopes_by_name(cls, scopes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if not all(_SCOPE.fullmatch(name) for name in scopes):
            raise ValueError("invalid scope name: use letters, digits, dots, dashes and underscores, 63 at most")
        return scopes

    @field_validator("gateway_scopes")
    @classmethod
    def _are_scopes(cls, scopes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if not all(_SCOPE.fullmatch(name) for names in scopes.values() for name in names):
            raise ValueError("invalid scope name: use letters, digits, dots, dashes and underscores, 63 at most")
        return scopes

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.gateway_engine_key is not None and self.tokens is None:
            raise ValueError("gateway_engine_key without tokens would open the engines to everybody: set tokens")
        if self.gateway_redis_url is not None and self.gateway_salt_key_file is None:
            raise ValueError("gateway_redis_url needs gateway_salt_key_file: it encrypts what gateways share")
        if self.gateway_max_held_bytes < self.max_request_bytes:
            raise ValueError("gateway_max_held_bytes must be at least max_request_bytes")
        return self

    @property
    def repairs(self) -> bool:
        """Whether bodies of any scope are repaired, or would be."""
        return bool(self.gateway_repair or any(self.gateway_repair_scopes.values()))

    @property
    def engine_kind(self) -> Literal["auto", "any", "vllm", "sglang"]:
        """The kind of all engines; `auto`: they are asked."""
        if self.gateway_engine_kind == "auto" and self.gateway_hints != "off":
            return self.gateway_hints
        return self.gateway_engine_kind

    def scopes_of(self, client: str) -> tuple[str, ...]:
        """Return the scopes that a client may name."""
        return self.gateway_scopes.get(client, self.gateway_scopes.get(EVERYONE, ()))
