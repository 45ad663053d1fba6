"""Settings of the fleet's Redis, shared by engines and sidecars. redis-py is imported only if a URL is set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.wire.certificates import CertificateFiles
from lpc.wire.variables import none_if_empty

if TYPE_CHECKING:
    from lpc.wire.redis_connection import Connection, RedisUrl


REFUSALS: Final = ("OOM", "WRONGTYPE", "NOPERM", "READONLY", "MISCONF", "NOREPLICAS", "moving", "unknown", "other")
"""Causes for which Redis refuses single commands, as labels of metrics. All other causes affect every command."""
OF_A_KEY: Final = ("WRONGTYPE", "moving")
"""Refusals that concern a key. The others concern the server, so that another one behind the same address may not refuse."""


class RedisSettings(BaseSettings):
    """Settings of the connection to the fleet's Redis; a base class of settings objects."""

    # Errors do not quote inputs, because a Redis URL may contain a password.
    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, hide_input_in_errors=True)

    redis_url: SecretStr | None = Field(
        default=None, description="redis://, rediss:// (TLS) or unix:// URL of the fleet's Redis"
    )
    redis_password_file: Path | None = Field(
        default=None,
        description="file with the password of the URL's user, read at each connection, so that a new one needs no restart",
    )
    redis_ca: Path | None = Field(
        default=None, description="PEM file of the certificate authorities of Redis; empty: those of the system"
    )
    redis_cluster: bool = Field(default=False, description="the URL is a node of a Redis Cluster")
    redis_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="time limit of one answer of Redis, and of a connection, seconds"
    )

    client_certificate: Path | None = Field(
        default=None,
        description="PEM file of the process's certificate chain for servers that require one: the sidecar, Redis (mTLS)",
    )
    client_key: Path | None = Field(default=None, description="PEM file of the certificate's key, without a pass phrase")

    _empty_redis_is_none = field_validator(
        "redis_password_file", "redis_ca", "client_certificate", "client_key", mode="before"
    )(none_if_empty)

    @field_validator("redis_url")
    @classmethod
    def _readable(cls, url: SecretStr | None) -> SecretStr | None:
        return readable(url)

    @model_validator(mode="after")
    def _redis_is_whole(self) -> Self:
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key go together: set both or none")
        if self.redis_ca is not None and self._redis_urls() and not self.speaks_tls_to_redis:
            raise ValueError("redis_ca needs a Redis URL that begins with rediss://")
        if self.redis_password_file is not None:
            if self.redis_url is None:
                raise ValueError("redis_password_file needs redis_url: set LPC_REDIS_URL")
            if parsed(self.redis_url).password is not None:
                raise ValueError("redis_url and redis_password_file both contain a password: remove one of them")
        return self

    def _redis_urls(self) -> list[SecretStr]:
        return [] if self.redis_url is None else [self.redis_url]

    @property
    def speaks_tls_to_redis(self) -> bool:
        """Whether a Redis URL uses TLS."""
        return any(url.get_secret_value().startswith("rediss://") for url in self._redis_urls())

    @property
    def redis_files(self) -> CertificateFiles:
        """Certificates for Redis."""
        return CertificateFiles(self.client_certificate, self.client_key, self.redis_ca)

    def redis_connection(self) -> "Connection":
        """Return a connection, not opened yet. ``redis_url`` must be set. Raises ValueError if redis-py refuses it."""
        from lpc.wire.redis_connection import Connection

        assert self.redis_url is not None
        return Connection(
            self.redis_url.get_secret_value(),
            cluster=self.redis_cluster,
            timeout_s=self.redis_timeout_s,
            files=self.redis_files,
            password_file=self.redis_password_file,
        )


def readable(url: SecretStr | None) -> SecretStr | None:
    """Return a Redis URL without white space around it, None if it is empty. Raises ValueError if it is malformed."""
    if url is None or not (text := url.get_secret_value().strip()):
        return None
    parsed(SecretStr(text))
    return SecretStr(text)


def parsed(url: SecretStr) -> "RedisUrl":
    """Return the parts of a Redis URL. Raises ValueError, without the URL, if it is malformed."""
    from lpc.wire.redis_connection import RedisUrl

    return RedisUrl.parse(url.get_secret_value())
