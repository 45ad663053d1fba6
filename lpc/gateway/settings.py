"""Settings of the gateway: one typed object, built once from flags and environment."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from lpc.gateway.targets import ENTRY, OWN
from lpc.wire.server_settings import ServerSettings
from lpc.wire.variables import none_if_empty

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

EVERYONE = "*"
"""In `gateway_scopes`: clients that are not named."""
_FIELD = re.compile(r"[A-Za-z0-9_-]+")
_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Bounds:
    """Bounds that nobody needs to set; a test may give others.

    Attributes:
        wait_s: seconds that a request waits for an equal one that the engine is answering; 0: none waits.
        max_values: commas, colons and opening brackets outside of strings in the JSON of one completion's body; over it 413.
            The gateway does nothing else for about 1 microsecond each.
        body_timeout_s: seconds that the gateway waits for the bytes of one body, in all; over it 408.
        max_answer_bytes: an answer is recorded up to this length; longer ones are not kept.
        connect_timeout_s: seconds that an engine gets to accept a connection.
        probe_interval_s: seconds between two requests for the health of an engine that is down.
        conversations: conversations whose names are remembered, about 300 bytes each.
    """

    wait_s: float = 120.0
    max_values: int = 100_000
    body_timeout_s: float = 60.0
    max_answer_bytes: int = 2**20
    connect_timeout_s: float = 2.0
    probe_interval_s: float = 1.0
    conversations: int = 100_000


class GatewaySettings(ServerSettings):
    """What an operator can set. Flags come before the environment.

    How the sidecar is reached stands in :class:`eviction_client.settings.ClientSettings` (LPC_PREDICTOR_...).
    """

    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, extra="ignore", hide_input_in_errors=True)

    port: int = Field(8080, ge=0, le=65535, description="TCP port; 0 chooses a free one.")
    metrics_port: int | None = Field(9095, ge=0, le=65535, description="Port of the Prometheus metrics; empty: none.")
    drain_timeout_s: float = Field(30.0, ge=0, description="Seconds that requests in flight get at shutdown.")

    gateway_engines: Annotated[tuple[str, ...], NoDecode] = Field(
        ("http://127.0.0.1:8000",),
        description="Base URLs of the engines, separated by commas, without /v1. They must serve the same models.",
    )
    gateway_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="More requests that are proxied, as `METHOD /path` separated by commas; `*` stands for one segment. Do "
        "not name a path by which an engine is administered: clients reach it with the engine's key.",
    )
    gateway_engine_key: SecretStr | None = Field(
        None, description="Key that the engines ask for. Only with tokens: without those, clients send their own."
    )
    gateway_engine_ca: Path | None = Field(
        None, description="PEM file of the authority of engines at https:// addresses; without it the system's."
    )
    gateway_identity_headers: Annotated[tuple[str, ...], NoDecode] = Field(
        (
            *("authorization", "api-key", "x-api-key"),
            *("openai-organization", "openai-project", "x-forwarded-user", "cookie"),
        ),
        description="Header fields that say who asks, separated by commas: callers who differ in one share nothing. A proxy "
        "before the gateway must set or remove those that are not credentials, since the gateway believes them.",
    )
    gateway_cache_anonymous: bool = Field(
        False,
        description="Also cache answers for callers whom only a credential (authorization, api-key, x-api-key) or nothing "
        "identifies: those who share it then share answers. Without tokens the gateway cannot tell whether they do.",
    )
    gateway_salt_key_file: Path | None = Field(
        None,
        description="File with a secret of at least 32 characters, the same for all gateways before an engine: from it and the "
        "tenant come cache salts and names of conversations. Without it each start of a gateway makes a new one, and the "
        "engines' caches begin cold.",
    )
    gateway_hints: Literal["off", "vllm", "sglang"] = Field(
        "off",
        description="The kind of engine, vllm or sglang, that gets the time for which a client asks to keep its prompt "
        "(cache_control, prompt_cache_options, prompt_cache_retention) as a hint. It acts on it within LPC_HINTS_SHARE.",
    )
    gateway_scopes: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description='JSON: which scopes a client may name in x-lpc-scope, {"client": ["faq"], "*": ["code"]}; "*" stands for '
        "clients that are not named. Without x-lpc-scope it is the scope `default`.",
    )

    gateway_cache: bool = Field(True, description="Ask the sidecar's response caches; false: a plain proxy.")
    gateway_lookup_timeout_s: Seconds = Field(
        0.04,
        le=10,
        description="Longest time that an answer is looked up before the engine is asked. With all else a silent sidecar "
        "then adds less than 50 ms.",
    )
    gateway_max_held_bytes: int = Field(
        256 * 2**20, ge=1024, description="Bytes of all bodies that are held at once, until they are answered; over it 503."
    )
    gateway_max_requests: int = Field(2048, ge=1, description="Requests that are answered at once; over it 503.")

    _empty_is_none_too = field_validator("gateway_engine_key", "gateway_engine_ca", "gateway_salt_key_file", mode="before")(
        none_if_empty
    )

    @field_validator("gateway_engines", "gateway_paths", "gateway_identity_headers", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("gateway_engines")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if not urls:
            raise ValueError("name at least one engine: LPC_GATEWAY_ENGINES=http://engine:8000")
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
                raise ValueError("each engine must be http://host:port or https://host:port")
            if parts.path.rstrip("/").endswith("/v1"):
                raise ValueError("leave /v1 out of an engine's address: it comes from the client")
        if len(set(urls)) < len(urls):
            raise ValueError("an engine is named twice")
        return tuple(url.rstrip("/") for url in urls)

    @field_validator("gateway_identity_headers")
    @classmethod
    def _are_fields(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_FIELD.fullmatch(name) for name in names):
            raise ValueError("each identity header must be a field's name, as x-forwarded-user")
        return tuple(name.lower() for name in names)

    @field_validator("gateway_paths")
    @classmethod
    def _are_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for entry in paths:
            if not ENTRY.fullmatch(entry) or entry.partition(" ")[2].startswith(OWN):
                raise ValueError(
                    "each path must be `METHOD /path`, not below /lpc/, as in LPC_GATEWAY_PATHS='GET /v1/responses/*'"
                )
        return paths

    @field_validator("gateway_scopes")
    @classmethod
    def _are_scopes(cls, scopes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if not all(_SCOPE.fullmatch(name) for names in scopes.values() for name in names):
            raise ValueError("a scope's name is of letters, digits, dots, dashes and underscores, 63 at most")
        return scopes

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.gateway_engine_key is not None and self.tokens is None:
            raise ValueError("gateway_engine_key would open the engines to everybody: set tokens too")
        if self.gateway_max_held_bytes < self.max_request_bytes:
            raise ValueError("gateway_max_held_bytes is less than max_request_bytes: no body of that length could be held")
        return self

    def scopes_of(self, client: str) -> tuple[str, ...]:
        """Return the scopes that a client may name."""
        return self.gateway_scopes.get(client, self.gateway_scopes.get(EVERYONE, ()))
