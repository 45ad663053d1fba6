"""Settings of the sidecar: one typed object, built once from flags, environment (`LPC_...`) and an optional TOML file."""

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from lpc.responses.scopes import ScopeSettings
from lpc.wire.access import is_loopback
from lpc.wire.certificates import CertificateFiles
from lpc.wire.redis_settings import RedisSettings, parsed, readable
from lpc.wire.variables import none_if_empty


def _standard_endpoint() -> str | None:
    """Return where OpenTelemetry's own variables send traces, if they do."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


class ServiceSettings(RedisSettings):
    """What an operator can set. Flags come before the environment, the environment before the file."""

    model_config = SettingsConfigDict(env_prefix="LPC_", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address on which gRPC listens.")
    port: int = Field(50051, ge=0, le=65535, description="TCP port of gRPC; 0 chooses a free one.")
    unix_socket: Path | None = Field(
        Path(tempfile.gettempdir()) / f"lpc-{os.getuid()}" / "predictor.sock",
        description="Unix socket of gRPC, for engines in the same pod; empty: none.",
    )
    unix_socket_mode: str = Field(
        "0600",
        description="Octal mode of that socket. 0600: for engines of the sidecar's own user; 0660: of the socket's group too. "
        "A folder with the setgid bit hands its group down, as in a pod with an fsGroup.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address of the Prometheus metrics.")
    metrics_port: int | None = Field(9090, ge=0, le=65535, description="Port of the Prometheus metrics; empty: none.")

    tls_certificate: Path | None = Field(
        None, description="PEM file of the sidecar's certificate chain: TLS on the TCP port. The Unix socket stays plain."
    )
    tls_key: Path | None = Field(None, description="PEM file of its key, without a pass phrase.")
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of an authority: only clients with a certificate signed by it may connect (mTLS). Without "
        "`tokens` the certificate names the client: the first DNS name or URI of its subjectAltName, else its common name.",
    )
    tokens: Path | None = Field(
        None, description="File of `name: sha256 of the token` lines: on the TCP port only clients with a token are served."
    )
    client_rate: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Conversations per second of one client, averaged over a second; 0: any."
    )

    connection_age_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="Age at which connections are ended, give or take a tenth, so that clients look for new sidecars; calls in "
        "flight get 30 s. 0: never.",
    )

    models: Path = Field(Path("models"), description="Model repository: folders <model>/<version>/ made by `lpc export`.")
    model: str = Field("e5-small", description="Model to serve; its newest valid version is used.")
    reload_interval_s: Annotated[float, Field(gt=0)] = Field(5.0, description="Seconds between looks for a new version.")

    provider: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where inference runs; auto: CUDA where present.")
    threads: int = Field(0, ge=0, description="Threads of inference on the CPU; 0: one per core.")
    cuda_memory_mib: int = Field(512, ge=64, description="Bound of ONNX Runtime's CUDA arena, MiB.")

    max_batch_tokens: int = Field(
        0,
        ge=0,
        description="Tokens of one batch, padding counted; 0: 512 on CPU and 32768 on CUDA. A batch that memory does not hold "
        "is run again in halves, and the number is halved.",
    )
    max_batch_items: int = Field(256, ge=1, description="Conversations of one model batch, and of one PredictBatch call.")
    max_queue_items: int = Field(1024, ge=1, description="Conversations waiting for the model; over it RESOURCE_EXHAUSTED.")
    max_request_bytes: int = Field(16 * 2**20, ge=1024, description="Bytes of one gRPC message.")
    max_messages: int = Field(4096, ge=1, description="Messages of one chat.")
    max_token_ids: int = Field(2**20, ge=1, description="Token ids of one prompt.")
    max_turn_count: int = Field(100_000, ge=1, description="Highest turn count accepted.")

    label_memory_turns: int = Field(
        100_000,
        ge=0,
        description="Turns kept in memory until their horizon has passed, to see whether their conversations continue; 0: none "
        "and no figures of calibration. If full, as many more are recognised without a label. About 1 KB each, with the label "
        "log 1.8 KB.",
    )
    label_horizon_s: float = Field(
        3600.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which a conversation without a further turn counts as not continued.",
    )
    label_log: Path | None = Field(
        None, description="Folder of labelled embeddings (docs/explanation/learning.md); empty: none."
    )
    label_log_rows: int = Field(4096, ge=1, description="Rows of one file of the label log.")
    label_log_interval_s: float = Field(
        300.0, gt=0, le=86_400, description="Seconds after which a file of the label log is written with fewer rows."
    )
    label_log_mib: int = Field(
        1024, ge=1, description="Bound of all files in the label log's folder, MiB; the oldest are deleted."
    )

    returns_refit_s: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="Seconds between two refits of the return model, which learns from the traffic when conversations return "
        "(docs/explanation/learning.md); 0: nothing is learned, and answers carry no reuse group.",
    )
    returns_turns: int = Field(
        20_000, ge=200, le=1_000_000, description="Turns that the return model remembers. About 1 KB each."
    )
    returns_state: Path | None = Field(
        None, description="File in which what was learnt of returns outlives a restart; empty: none."
    )

    redis_url: SecretStr | None = Field(
        None,
        description="redis://, rediss:// (TLS) or unix:// URL of the fleet's Redis, through which sidecars share their turns: "
        "hashes and numbers for a label horizon, never text. Without it, each learns from its own turns only.",
    )

    cache_redis_url: SecretStr | None = Field(
        None,
        description="Redis of the response caches (docs/how-to/response-caches.md), which keeps answers, encrypted; empty: "
        "there are none. User and password percent-encoded in it. Needs cache_keys and the extra `cache`.",
    )
    cache_redis_password_file: Path | None = Field(
        None, description="File that holds its password instead, read at each connection."
    )
    cache_redis_ca: Path | None = Field(None, description="PEM file of the authority that signed its certificate.")
    cache_redis_certificate: Path | None = Field(None, description="PEM file of the sidecar's own certificate for it.")
    cache_redis_key: Path | None = Field(None, description="PEM file of its key, without a pass phrase.")
    cache_redis_cluster: bool = Field(False, description="The URL is a node of a Redis Cluster.")
    cache_redis_timeout_s: Annotated[float, Field(gt=0, le=10)] = Field(
        0.05, description="Seconds that a lookup waits for that Redis; then it is a miss."
    )
    cache_shares_redis: bool = Field(
        False, description="cache_redis_url may be the Redis of redis_url: its encrypted answers then share the engines' Redis."
    )
    cache_keys: Path | None = Field(
        None,
        description="File of `name: 64 hexadecimal digits` lines: `names` and the keys that answers are encrypted with, the "
        "first of which is used for new ones; read again when it changes.",
    )
    cache_gateways: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Clients of the sidecar that may name a tenant in requests to the response caches, separated by commas. "
        "Use the names of your gateways' tokens or certificates, `unix` for the Unix socket, `anonymous` for a port without.",
    )
    cache_scopes: dict[str, ScopeSettings] = Field(
        default_factory=dict,
        description="Rules of each scope, by name; `default` holds for all others. Limits: kind, mode, ttl_s, any_temperature, "
        "bound, level, max_entries, max_mib, tenant_entries, tenant_mib. "
        "Evidence: evidence, exact, normalised, judge, judge_url, judge_model, judge_key_file, judge_timeout_s.",
    )
    cache_verdicts: Path = Field(
        Path(tempfile.gettempdir()) / f"lpc-{os.getuid()}" / "cache-verdicts.json",
        description="File in which the sidecar keeps that a scope's evidence has turned, so that an emptied Redis does "
        "not undo it; put it on a volume that outlives restarts. Counts only.",
    )
    cache_client_scopes: int = Field(
        64, ge=1, le=10_000, description="Scopes that one client may use; lookups and answers in others are refused (`scopes`)."
    )
    cache_invalidations: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="Calls of Invalidate per minute of one client, and of one tenant of a gateway, at each sidecar.",
    )
    cache_max_entry_kib: int = Field(256, ge=1, le=16_384, description="Answers larger than this are not kept, KiB.")
    cache_flight_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = Field(
        60.0,
        description="Seconds after which a caller who asks the engine for others too and never comes back is taken for dead.",
    )

    served_models: dict[str, str] = Field(
        default_factory=dict,
        description="Served model name to the folder (or hub name) of its tokenizer, for requests with token ids. It comes "
        "before the tokenizer that the engine's plug-in offers; needed only where nothing offers one.",
    )
    offered_tokenizers: Path = Field(
        Path(tempfile.gettempdir()) / f"lpc-{os.getuid()}" / "tokenizers",
        description="Folder in which the tokenizers that engines offer are kept, across restarts too.",
    )
    offered_tokenizers_mib: int = Field(
        128,
        ge=0,
        description="Bound of all of them, MiB; those used longest ago are removed. One has 2 to 35. 0: none are taken.",
    )
    traces_endpoint: str | None = Field(
        default_factory=_standard_endpoint,
        description="OTLP endpoint (gRPC) that traces are sent to, http://host:port or https:// with TLS; empty: none. Without "
        "it the standard OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT counts. Needs the extra `otel`.",
    )
    drain_timeout_s: float = Field(10.0, ge=0, description="Seconds that requests in flight get at shutdown.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least severe log lines written.")
    log_format: Literal["json", "text"] = Field("json", description="One JSON object per log line, or text for a terminal.")

    _empty_is_none = field_validator(
        *(
            "unix_socket",
            "metrics_port",
            "tls_certificate",
            "tls_key",
            "tls_client_ca",
            "tokens",
            "label_log",
            "returns_state",
            "traces_endpoint",
            *("cache_redis_password_file", "cache_redis_ca", "cache_redis_certificate", "cache_redis_key", "cache_keys"),
        ),
        mode="before",
    )(none_if_empty)

    @field_validator("cache_gateways", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("unix_socket_mode")
    @classmethod
    def _is_a_mode(cls, value: str) -> str:
        if not re.fullmatch(r"0?[67][0-7]{2}", value):
            raise ValueError(
                f"{value!r} is not an octal mode of a socket: use 0600 (engines of the same user) or 0660 (and of the group)"
            )
        return value

    @model_validator(mode="after")
    def _endpoint_is_a_url(self) -> Self:
        # Of the whole object, since one that comes from OpenTelemetry's variables is a default.
        if self.traces_endpoint is not None:
            parts = urlsplit(self.traces_endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(
                    "traces_endpoint (or OTEL_EXPORTER_OTLP_ENDPOINT) must be http://host:port or https://host:port"
                )
        return self

    @model_validator(mode="after")
    def _label_log_has_labels(self) -> Self:
        if self.label_log is not None and not self.label_memory_turns:
            raise ValueError("label_log needs label_memory_turns above 0: rows are labelled from memory")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: set both or none")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self

    @field_validator("cache_redis_url")
    @classmethod
    def _cache_url_readable(cls, url: SecretStr | None) -> SecretStr | None:
        return readable(url)

    @model_validator(mode="after")
    def _cache_is_whole(self) -> Self:
        if self.cache_redis_url is None:
            if self.cache_keys is not None or self.cache_scopes or self.cache_gateways:
                raise ValueError(
                    "cache_keys, cache_scopes and cache_gateways need cache_redis_url: response caches keep answers in Redis"
                )
            return self
        if self.cache_keys is None:
            raise ValueError("cache_redis_url needs cache_keys: answers are kept encrypted (docs/how-to/response-caches.md)")
        if self.tokens is None and self.tls_client_ca is None and not is_loopback(self.host):
            raise ValueError(
                f"with response caches, callers on {self.host} must have names: set LPC_TOKENS or LPC_TLS_CLIENT_CA "
                "(docs/how-to/security.md), or listen on 127.0.0.1"
            )
        url = parsed(self.cache_redis_url)
        if self.redis_url is not None and not self.cache_shares_redis:
            scores = parsed(self.redis_url)
            if scores.where.replace("localhost", "127.0.0.1") == url.where.replace("localhost", "127.0.0.1"):
                raise ValueError(
                    "cache_redis_url is the Redis of redis_url, whose readers are engines: give the response caches their own, "
                    "or set cache_shares_redis"
                )
        if self.cache_redis_password_file is not None and url.password is not None:
            raise ValueError("the password is in cache_redis_url and in cache_redis_password_file: leave it in one of them")
        if (self.cache_redis_certificate is None) != (self.cache_redis_key is None):
            raise ValueError("cache_redis_certificate and cache_redis_key go together: set both or none")
        if self.cache_redis_files.present and not self.cache_redis_url.get_secret_value().startswith("rediss://"):
            raise ValueError("certificates for the response caches' Redis need a cache_redis_url that begins with rediss://")
        return self

    @property
    def cache_redis_files(self) -> CertificateFiles:
        """Certificates for the Redis of the response caches."""
        return CertificateFiles(self.cache_redis_certificate, self.cache_redis_key, self.cache_redis_ca)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the file named by LPC_CONFIG, if any, behind flags and environment."""
        del dotenv_settings, file_secret_settings
        path = os.environ.get("LPC_CONFIG")
        if not path:
            return init_settings, env_settings
        return init_settings, env_settings, _settings_file(settings_cls, Path(path))


def _settings_file(settings_cls: type[BaseSettings], path: Path) -> TomlConfigSettingsSource:
    """Return the settings of a TOML file. Raises ValueError, which names it, where it cannot be read."""
    try:
        path.open("rb").close()  # the source takes a file that is missing for an empty one
        return TomlConfigSettingsSource(settings_cls, path)
    except FileNotFoundError as error:
        raise ValueError(f"there is no settings file {path} (--config or LPC_CONFIG)") from error
    except OSError as error:
        raise ValueError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # of the TOML, or not UTF-8
        raise ValueError(f"the settings file {path} is not TOML: {error}") from error
