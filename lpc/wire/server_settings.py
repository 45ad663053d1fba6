"""Settings that sidecar and gateway share."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.wire.addresses import bare
from lpc.wire.certificates import CertificateFiles
from lpc.wire.variables import none_if_empty

Host = Annotated[str, AfterValidator(bare)]
"""An address to listen on, without brackets."""


class ServerSettings(BaseSettings):
    """Settings of listening, access and logs; a base class of settings objects, which set the default ports."""

    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, hide_input_in_errors=True)

    host: Host = Field(
        "127.0.0.1",
        description="Address or name to listen on, IPv6 with or without brackets; `::` is all addresses, IPv4 as well. The "
        "images set `::`.",
    )
    port: int = Field(ge=0, le=65535, description="TCP port; 0 chooses a free one.")
    metrics_host: Host = Field("127.0.0.1", description="Address of the Prometheus metrics, like `host`.")
    metrics_port: int | None = Field(ge=0, le=65535, description="Port of the Prometheus metrics; empty: disabled.")
    tls_certificate: Path | None = Field(
        None, description="PEM file of the process's certificate chain: enables TLS on the TCP port, not on a Unix socket."
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's key, without a pass phrase.")
    tokens: Path | None = Field(
        None,
        description="File with lines `name: sha256 of the token`: the TCP port serves only clients with a token. At the "
        "gateway each has its own cached answers; without the file, callers with the same identity headers are one client.",
    )
    max_request_bytes: int = Field(
        16 * 2**20, ge=1024, description="Largest gRPC message, or HTTP request body (above it 413), bytes."
    )
    drain_timeout_s: float = Field(ge=0, description="Seconds that running requests get at shutdown.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Lowest level that is logged.")
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
