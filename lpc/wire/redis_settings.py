"""The settings of a Redis, the same for engines and sidecars. redis-py is loaded only if there is a URL."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from lpc.wire.certificates import CertificateFiles
from lpc.wire.variables import none_if_empty

if TYPE_CHECKING:
    from lpc.wire.redis_connection import Connection, RedisUrl


class RedisSettings(BaseSettings):
    """How the fleet's Redis is reached. A settings object derives from it."""

    # Inputs are not shown in errors: a Redis URL may hold a password.
    model_config = SettingsConfigDict(env_prefix="LPC_", frozen=True, hide_input_in_errors=True)

    redis_url: SecretStr | None = Field(
        default=None, description="redis://, rediss:// (TLS) or unix:// URL of the fleet's Redis"
    )
    redis_user: str | None = Field(
        default=None, description="user of Redis' access list, as it is; without it the URL's (there percent-encoded)"
    )
    redis_password: SecretStr | None = Field(default=None, description="its password, as it is; without it the URL's")
    redis_password_file: Path | None = Field(
        default=None, description="file that holds its password instead, read at each connection: a new one needs no restart"
    )
    redis_ca: Path | None = Field(
        default=None, description="PEM file of the authority that signed Redis's certificate; without it the system's"
    )
    redis_certificate: Path | None = Field(default=None, description="PEM file of one's own certificate for Redis")
    redis_key: Path | None = Field(default=None, description="PEM file of its key, without a pass phrase")
    redis_cluster: bool = Field(default=False, description="the URL is a node of a Redis Cluster")
    redis_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="time for one answer of Redis, and for a connection"
    )

    _empty_redis_is_none = field_validator(
        *("redis_user", "redis_password", "redis_password_file", "redis_ca", "redis_certificate", "redis_key"), mode="before"
    )(none_if_empty)

    @field_validator("redis_url")
    @classmethod
    def _readable(cls, url: SecretStr | None) -> SecretStr | None:
        return readable(url)

    @model_validator(mode="after")
    def _redis_tls_is_whole(self) -> Self:
        if (self.redis_files.certificate is None) != (self.redis_files.key is None):
            raise ValueError("redis_certificate and redis_key go together: set both or none")
        url = self.redis_url.get_secret_value() if self.redis_url is not None else ""
        if url and self.redis_files.present and not url.startswith("rediss://"):
            raise ValueError("redis_ca, redis_certificate and redis_key need a redis_url that begins with rediss://")
        return self

    @model_validator(mode="after")
    def _one_password_for_redis(self) -> Self:
        given = [name for name in ("redis_user", "redis_password", "redis_password_file") if getattr(self, name) is not None]
        if not given:
            return self
        if self.redis_url is None:
            raise ValueError(f"{given[0]} needs redis_url: set LPC_REDIS_URL")
        url = parsed(self.redis_url)
        places = [name for name in given if name != "redis_user"] + ["redis_url"] * (url.password is not None)
        if len(places) > 1:
            raise ValueError(f"the password of Redis is in {' and in '.join(places)}: leave it in one of them")
        if not places:
            raise ValueError("redis_user needs a password: set redis_password or redis_password_file")
        if self.redis_user is not None and url.user is not None:
            raise ValueError("the user of Redis is in redis_user and in redis_url: leave it in one of them")
        return self

    @property
    def redis_files(self) -> CertificateFiles:
        """Certificates for Redis."""
        return CertificateFiles(self.redis_certificate, self.redis_key, self.redis_ca)

    def redis_connection(self) -> "Connection":
        """Return a connection, which is not opened yet. There must be a URL. Raises ValueError if redis-py refuses it."""
        from lpc.wire.redis_connection import Connection

        assert self.redis_url is not None
        return Connection(
            self.redis_url.get_secret_value(),
            cluster=self.redis_cluster,
            timeout_s=self.redis_timeout_s,
            files=self.redis_files,
            user=self.redis_user,
            password=None if self.redis_password is None else self.redis_password.get_secret_value(),
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
