"""What an error of redis-py means for the operator, and what to do about it."""

import ssl

import redis

from eviction_client.errors import StoreAccessDenied, StoreError, StoreUnreachable, StoreUnsuitable
from lpc.wire.certificates import verdict


def explain(error: Exception, where: str, timeout_s: float) -> StoreError:
    """Return the error of this package that says what an error of redis-py means for the operator."""
    text = str(error)
    if isinstance(error, redis.exceptions.NoPermissionError) or "user executing the script" in text:
        return StoreAccessDenied(
            f"Redis at {where} does not let this user do what the store needs: allow it EVAL, EVALSHA, ZMSCORE, ZADD, ZCOUNT, "
            "ZREMRANGEBYRANK, PEXPIRE, GET and SET on keys lpc:*."
        )
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        if "WRONGPASS" in text or "invalid" in text.lower():
            return StoreAccessDenied(f"Redis at {where} refuses this user or password: correct them in LPC_REDIS_URL.")
        return StoreAccessDenied(f"Redis at {where} asks for a password: set LPC_REDIS_URL to redis://USER:PASSWORD@{where}.")
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
