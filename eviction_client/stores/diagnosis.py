"""What an error of redis-py means for the operator, and what to do about it."""

import ssl
from typing import Final

import redis

from eviction_client.errors import StoreAccessDenied, StoreError, StoreUnreachable, StoreUnsuitable
from lpc.wire.certificates import verdict
from lpc.wire.redis_connection import ERRORS, PasswordFileError

NOT_WHOLE: Final = (
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.SlotNotCoveredError,
)
"""What a Cluster answers that is forming, failing over or moving slots: it is away, as a server that restarts is."""


def explain(error: Exception, where: str, timeout_s: float) -> StoreError:
    """Return the error of this package that says what an error of redis-py means for the operator."""
    error = _answered(error)
    text = str(error)
    if isinstance(error, PasswordFileError):
        return StoreAccessDenied(
            f"Redis at {where} cannot be asked: the file of LPC_REDIS_PASSWORD_FILE cannot be read, {text}."
        )
    if isinstance(error, redis.exceptions.NoPermissionError) or "user executing the script" in text:
        return StoreAccessDenied(
            f"Redis at {where} does not let this user do what the store needs: allow it EVAL, EVALSHA, ZMSCORE, ZADD, ZCOUNT, "
            "ZREMRANGEBYRANK and PEXPIRE on keys lpc:*, and of a Cluster CLUSTER SLOTS."
        )
    if "protected mode" in text:
        return StoreAccessDenied(
            f"Redis at {where} runs in protected mode and refuses every other machine: give it a user with a password "
            "(docs/explanation/security.md), or where its network is private set its protected-mode to no."
        )
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        if "WRONGPASS" in text or "invalid" in text.lower():
            return StoreAccessDenied(
                f"Redis at {where} refuses this user or password: correct them in LPC_REDIS_URL (there % / # ? @ are written "
                "%25 %2F %23 %3F %40), or set LPC_REDIS_USER and LPC_REDIS_PASSWORD, which are taken as they are."
            )
        return StoreAccessDenied(
            f"Redis at {where} asks for a password: set LPC_REDIS_USER and LPC_REDIS_PASSWORD, or LPC_REDIS_URL to "
            f"redis://USER:PASSWORD@{where}."
        )
    if isinstance(error, redis.BusyLoadingError):
        return StoreUnreachable(f"Redis at {where} is still loading its data: wait.")
    # The two texts are redis-py's own, of what the nodes tell about slots.
    if isinstance(error, NOT_WHOLE) or "slots are not covered" in text or "could not agree" in text:
        return StoreUnreachable(
            f"The Redis Cluster at {where} is not whole: it is forming, failing over, or some of its nodes are gone. "
            "If it stays so, see CLUSTER INFO and CLUSTER NODES."
        )
    if isinstance(error, redis.ReadOnlyError) or "READONLY" in text or "read only" in text.lower():
        return StoreUnsuitable(f"Redis at {where} is a read-only replica: set LPC_REDIS_URL to the primary.")
    if isinstance(error, redis.OutOfMemoryError):
        return StoreUnsuitable(f"Redis at {where} is out of memory: raise maxmemory, or set an eviction policy.")
    if "unknown command" in text.lower():
        return StoreUnsuitable(f"Redis at {where} is too old: version 6.2 or later is needed (ZMSCORE).")
    if "cluster support disabled" in text or "Cluster mode is not enabled" in text:
        return StoreUnsuitable(f"Redis at {where} is not a Cluster: unset LPC_REDIS_CLUSTER.")
    if isinstance(error, (redis.exceptions.MovedError, redis.exceptions.AskError)):
        return StoreUnsuitable(f"Redis at {where} is a node of a Cluster: set LPC_REDIS_CLUSTER=true.")
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return StoreUnreachable(f"The certificate of Redis at {where} {verdict(error.__context__.verify_code)} (LPC_REDIS_CA).")
    if isinstance(error.__context__, ssl.SSLError):
        return StoreAccessDenied(
            f"Redis at {where} ends the TLS handshake: if it asks for certificates, set LPC_REDIS_CERTIFICATE and _KEY "
            "to one that its authority signed."
        )
    if isinstance(error.__context__, FileNotFoundError) and not where.startswith("/"):
        return StoreUnreachable(f"Redis at {where} cannot be asked: a file of LPC_REDIS_CA, _CERTIFICATE or _KEY is missing.")
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        return StoreUnreachable(
            f"Redis at {where} did not answer within {timeout_s:g} s: check that it runs and that no firewall is between."
        )
    if isinstance(error, (redis.ConnectionError, OSError, redis.exceptions.RedisClusterException)):
        return StoreUnreachable(f"Redis at {where} cannot be reached: check LPC_REDIS_URL and that the server runs.")
    return StoreUnsuitable(f"Redis at {where} refused a command ({type(error).__name__}): see its log.")


def _answered(error: Exception) -> Exception:
    """Return what a node has answered: redis-py's Cluster client wraps it once or twice."""
    while isinstance(error, redis.exceptions.RedisClusterException) and not isinstance(error, NOT_WHOLE):
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, ERRORS):
            return error
        error = inner
    return error
