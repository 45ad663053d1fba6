"""Settings of the sidecar, from flags, environment (`LPC_...`) and an optional TOML file."""

import os
import re
import tempfile
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from lpc.wire.certificates import CertificateFiles
from lpc.wire.names import MAX_NAME, is_name
from lpc.wire.redis_settings import RedisSettings
from lpc.wire.server_settings import ServerSettings
from lpc.wire.variables import none_if_empty

OWN_FOLDER = Path(tempfile.gettempdir()) / f"lpc-{os.getuid()}"


class ServiceSettings(RedisSettings, ServerSettings):
    """Settings of the operator. Flags take precedence over the environment, and the environment over the file."""

    model_config = SettingsConfigDict(env_prefix="LPC_", extra="forbid", frozen=True)

    port: int = Field(50051, ge=0, le=65535, description="TCP port; 0 chooses a free one.")
    metrics_port: int | None = Field(9090, ge=0, le=65535, description="Port of the Prometheus metrics; empty: disabled.")
    drain_timeout_s: float = Field(10.0, ge=0, description="Seconds that running requests get at shutdown.")

    unix_socket: Path | None = Field(
        OWN_FOLDER / "predictor.sock",
        description="Unix socket for gRPC, for engines in the same pod; empty: disabled.",
    )
    unix_socket_mode: str = Field(
        "0600",
        description="Octal mode of the Unix socket. 0600: only the sidecar's user may connect; 0660: the socket's group as "
        "well. In a folder with the setgid bit, as in a pod with an fsGroup, the socket gets the folder's group.",
    )
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of a certificate authority: only clients with a certificate signed by it may connect (mTLS). "
        "Without `tokens` the certificate names the client: the first DNS name or URI of its subjectAltName, else its common "
        "name.",
    )
    client_rate: float = Field(
        1000.0,
        ge=0,
        allow_inf_nan=False,
        description="Limit of conversations per second of one client, averaged over a second; 0: unlimited. More than an "
        "engine sends. Clients without a name are limited by address, those of the Unix socket together.",
    )

    models: Path = Field(Path("models"), description="Model repository: folders <model>/<version>/ made by `lpc export`.")
    model: str = Field(
        "default",
        description="Model to serve; its newest valid version is used. Default with response caches that embed questions: "
        "e5-small.",
    )

    provider: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where inference runs; auto: CUDA if present.")
    threads: int = Field(0, ge=0, description="Threads of inference on the CPU; 0: one per core.")
    cuda_memory_mib: int = Field(512, ge=64, description="Limit of ONNX Runtime's CUDA arena, MiB.")

    max_batch_tokens: int = Field(
        0,
        ge=0,
        description="Largest number of tokens of a batch, including padding; 0: 512 on CPU and 32768 on CUDA. If a batch does "
        "not fit into memory, it is split and the limit is halved.",
    )
    max_queue_items: int = Field(1024, ge=1, description="Queue length, above which requests fail with RESOURCE_EXHAUSTED.")

    label_memory_turns: int = Field(
        100_000,
        ge=0,
        description="Turns stored in memory until their horizon has passed, to see whether their conversations continue; 0: "
        "none, and no metrics of calibration. If full, the same number of further turns is stored without a label. About 1 KB "
        "each, with the label log 1.9 KB.",
    )
    label_horizon_s: float = Field(
        3600.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which a conversation without a further turn counts as not continued.",
    )
    label_log: Path | None = Field(
        None, description="Folder for labelled embeddings (docs/explanation/learning.md); empty: disabled."
    )
    label_log_mib: int = Field(
        1024, ge=1, description="Limit of all files in the label log's folder, MiB; the oldest are deleted."
    )

    state: Path | None = Field(
        None,
        description="Folder on a persistent volume for what the sidecar learns, such as the return model. Each sidecar needs "
        "its own. Empty: that is lost at a restart.",
    )

    redis_url: SecretStr | None = Field(
        None,
        description="redis://, rediss:// (TLS) or unix:// URL of the fleet's Redis, through which sidecars share their turns: "
        "hashes and numbers for a label horizon, never text. Without it, each sidecar learns from its own turns only.",
    )

    served_models: dict[str, str] = Field(
        default_factory=dict,
        max_length=100,
        description="Folder (or hub name) of the tokenizer by served model name (at most 100), for requests with token ids. "
        "Takes precedence over the tokenizer that the engine's plug-in offers; needed only if no plug-in offers one.",
    )
    offered_tokenizers: bool = Field(
        True, description="Whether engines may send their tokenizers. The sidecar keeps eight in memory."
    )

    _empty_is_none_here = field_validator("unix_socket", "tls_client_ca", "label_log", "state", mode="before")(none_if_empty)

    @field_validator("served_models")
    @classmethod
    def _have_names(cls, models: dict[str, str]) -> dict[str, str]:
        bad = next((name for name in models if not is_name(name)), None)
        if bad is not None:
            raise ValueError(f"{bad[:50]!r} is not a name of at most {MAX_NAME} printable characters")
        return models

    @field_validator("unix_socket_mode")
    @classmethod
    def _is_a_mode(cls, value: str) -> str:
        if not re.fullmatch(r"0?[67][0-7]{2}", value):
            raise ValueError(
                f"{value!r} is not an octal mode of a socket: use 0600 (only the same user) or 0660 (also the group)"
            )
        return value

    @model_validator(mode="after")
    def _label_log_has_labels(self) -> Self:
        if self.label_log is not None and not self.label_memory_turns:
            raise ValueError("label_log needs label_memory_turns above 0: rows are labelled from memory")
        return self

    @model_validator(mode="after")
    def _client_ca_has_a_certificate(self) -> Self:
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self

    @property
    def tls_files(self) -> CertificateFiles:
        """The sidecar's certificate and key, and the certificate authority of its clients."""
        return CertificateFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)

    @property
    def model_name(self) -> str:
        """Name of the model to serve."""
        return self.model

    @property
    def returns_file(self) -> Path | None:
        """File of the return model; None: it is not saved."""
        return None if self.state is None else self.state / "returns.npz"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Add the file named by LPC_CONFIG, if any, with the lowest precedence."""
        del dotenv_settings, file_secret_settings
        path = os.environ.get("LPC_CONFIG")
        if not path:
            return init_settings, env_settings
        return init_settings, env_settings, _settings_file(settings_cls, Path(path))


def _settings_file(settings_cls: type[BaseSettings], path: Path) -> TomlConfigSettingsSource:
    """Return the settings of a TOML file. Raises ValueError, which names the file, if it cannot be read."""
    try:
        path.open("rb").close()  # TomlConfigSettingsSource ignores a missing file
        return TomlConfigSettingsSource(settings_cls, path)
    except FileNotFoundError as error:
        raise ValueError(f"the settings file {path} does not exist (--config or LPC_CONFIG)") from error
    except OSError as error:
        raise ValueError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # invalid TOML or UTF-8
        raise ValueError(f"the settings file {path} is not TOML: {error}") from error
    except RecursionError as error:
        raise ValueError(f"the settings file {path} is nested too deeply") from error
