"""Settings of a process that listens: the same for sidecar and gateway."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.wire.certificates import CertificateFiles
from lpc.wire.variables import none_if_empty


class ServerSettings(BaseSettings):
    """Where a process listens, who may ask it, and what it logs. A settings object derives from it and sets the ports."""

    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, hide_input_in_errors=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(ge=0, le=65535, description="TCP port; 0 chooses a free one.")
    metrics_host: str = Field("127.0.0.1", description="Address of the Prometheus metrics.")
    metrics_port: int | None = Field(ge=0, le=65535, description="Port of the Prometheus metrics; empty: none.")
    tls_certificate: Path | None = Field(
        None, description="PEM file of the process's certificate chain: TLS on the TCP port. A Unix socket stays plain."
    )
    tls_key: Path | None = Field(None, description="PEM file of its key, without a pass phrase.")
    tokens: Path | None = Field(
        None,
        description="File of `name: sha256 of the token` lines: only clients with a token are served on the TCP port. At the "
        "gateway each gets its own answers; without the file, callers with the same identity headers are one client.",
    )
    max_request_bytes: int = Field(
        16 * 2**20, ge=1024, description="Bytes of one gRPC message, or of one HTTP request's body (over it 413)."
    )
    drain_timeout_s: float = Field(ge=0, description="Seconds that requests in flight get at shutdown.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least severe log lines written.")
    log_format: Literal["json", "text"] = Field("json", description="One JSON object per log line, or text for a terminal.")

    _empty_is_none = field_validator("metrics_port", "tls_certificate", "tls_key", "tokens", mode="before")(none_if_empty)

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: set both or none")
        return self

    @property
    def tls_files(self) -> CertificateFiles:
        """The process's certificate and key."""
        return CertificateFiles(self.tls_certificate, self.tls_key)
