"""Causes and remedies of redis-py's errors, and the health of a Redis: when to retry, and what to log.

Messages of Redis are not shown, because they may quote a command with its key and values.
"""

import logging
import re
import ssl
import time
from collections.abc import Callable
from typing import Final

import redis
import redis.exceptions as e
from redis.backoff import AbstractBackoff, EqualJitterBackoff

from lpc.wire.bugs import log_bug
from lpc.wire.certificates import verdict
from lpc.wire.redis_connection import ERRORS, Connection, PasswordFileError
from lpc.wire.redis_settings import OF_A_KEY

log = logging.getLogger(__name__)

RENEW_S: Final = 5.0
"""Least time between two replacements of the connections while Redis refuses commands."""
LOG_AGAIN_S: Final = 3600.0

_LOGIN: Final = "{settings}_PASSWORD_FILE, or in {settings}_URL (where % / # ? @ are written %25 %2F %23 %3F %40)"
_ADVICE: Final = {
    "NOPERM": "does not let this user run {command} or use a key: give it the rights of docs/how-to/security.md",
    "protected": "runs in protected mode and refuses other machines: give it a user with a password, or, on a private network, "
    "set its protected-mode to no",
    "password": f"refuses this user or password: correct them in {_LOGIN}",
    "no password": f"requires a password: set it in {_LOGIN}",
    "loading": "is still loading its data: it answers when it has finished",
    "busy": "runs a script of another program, and answers when that ends: see its log; SCRIPT KILL stops the script",
    "clients": "has too many clients: it answers when some leave; raise maxclients",
    "cluster": "is an incomplete Cluster: it is forming or failing over, or some nodes are down; if this lasts, see CLUSTER "
    "INFO and CLUSTER NODES",
    "READONLY": "is a read-only replica: a new connection is opened, which leads to the new primary after a failover; if this "
    "lasts, {settings}_URL leads to a replica",
    "MASTERDOWN": "is a replica without its primary: a new connection is opened, which leads to the new primary after a "
    "failover; if this lasts, see its log",
    "OOM": "is out of memory and does not store new data until you raise its maxmemory",
    "WRONGTYPE": "contains a key of another type, and refuses it until that is deleted: use a Redis into which no other "
    "program writes",
    "MISCONF": "cannot write its data to disk, and stores nothing until it can: see its log",
    "NOREPLICAS": "has too few replicas connected: a new connection is opened, which leads to the new primary after a "
    "failover; if this lasts, see its log",
    "moving": "moves slots between nodes: commands on their keys fail until the slots have moved; if this lasts, see "
    "CLUSTER NODES",
    "unknown": "does not run {command}: Redis 6.2 or later does; if a proxy answers in its place, let it pass the command on, "
    "or connect without it",
    "handshake": "does not run {command}, with which a connection begins; if a proxy answers in its place, {remedy}",
    "unneeded password": "has no password: leave it out of {settings}_URL, and unset {settings}_PASSWORD_FILE",
    "single": "is not a Cluster: unset {settings}_CLUSTER",
    "moved": "is a node of a Cluster: set {settings}_CLUSTER=true",
    "timeout": "did not answer within {timeout_s:g} s: new connections are tried; check that it runs and that no firewall "
    "blocks it",
    "away": "cannot be reached: check {settings}_URL and that the server runs",
    "password file": "cannot be used: the file of {settings}_PASSWORD_FILE cannot be read, {file}",
    "certificate": "has a certificate that {verdict} (LPC_REDIS_CA)",
    "TLS": "has aborted the TLS handshake: if it requires certificates, set LPC_CLIENT_CERTIFICATE and LPC_CLIENT_KEY to one "
    "that its certificate authority has signed",
    "no file": "cannot be used: its socket, or a file of LPC_REDIS_CA, LPC_CLIENT_CERTIFICATE or LPC_CLIENT_KEY, is missing",
    "other": "refused a command ({kind}): see its log",
}
"""Meaning and remedy of each cause."""

_COMMANDS: Final = frozenset(
    (
        *("HELLO", "AUTH", "SELECT", "CLIENT", "CLUSTER", "COMMAND", "PING", "EVAL", "EVALSHA", "SCRIPT", "FUNCTION", "FCALL"),
        *("GET", "SET", "DEL", "UNLINK", "EXISTS", "EXPIRE", "PEXPIRE", "PTTL", "STRLEN", "TYPE", "HGET", "HSET", "HMGET"),
        *("HGETALL", "HDEL", "HSCAN", "XRANGE", "XADD", "ZADD", "ZCARD", "ZRANGE", "ZREVRANGE", "ZMSCORE", "ASKING"),
    )
)
"""Commands that messages name. Other words of a server's message may be values."""
_REMEDIES: Final = {
    "HELLO": "add ?protocol=2 to {settings}_URL",
    "AUTH": "leave user and password out of {settings}_URL",
    "SELECT": "leave the database's number out of {settings}_URL",
}


def _unknown(command: str) -> str:
    """Return a pattern of the messages with which servers and proxies do not know or permit a command."""
    name = rf"[`'\"]?\b(?:{command})\b[`'\"]?"
    return (
        rf"(?i:(?:unknown|unsupported|disabled|disallowed)(?: redis)? (?:sub)?command\W*{name}"
        rf"|command\W*{name}[^,.]{{0,20}} not (?:allowed|supported|permitted|enabled))"
    )


_NEVER: Final = "(?!)"
_SIGNS: Final[tuple[tuple[str, tuple[type[BaseException], ...], str], ...]] = (
    ("password file", (PasswordFileError,), _NEVER),
    ("certificate", (ssl.SSLCertVerificationError,), _NEVER),
    ("TLS", (ssl.SSLError,), _NEVER),
    ("no file", (FileNotFoundError,), _NEVER),
    ("timeout", (redis.TimeoutError, TimeoutError), _NEVER),
    ("NOPERM", (e.NoPermissionError,), "NOPERM|user executing the script"),
    ("protected", (), "protected mode"),
    ("unneeded password", (), "no password is set|without any password configured"),
    ("password", (), "WRONGPASS|(?i:invalid.*password)"),
    ("no password", (redis.AuthenticationError,), "NOAUTH"),
    ("loading", (redis.BusyLoadingError,), _NEVER),
    ("busy", (), r"\bBUSY \w+ is busy"),
    ("clients", (), "max number of clients"),
    ("MASTERDOWN", (e.MasterDownError,), "MASTERDOWN"),
    ("cluster", (e.ClusterDownError, e.SlotNotCoveredError), "slots are not covered|could not agree"),
    ("READONLY", (redis.ReadOnlyError,), "READONLY|(?i:read only)"),
    ("OOM", (redis.OutOfMemoryError,), r"\bOOM\b"),
    ("WRONGTYPE", (), "WRONGTYPE"),
    ("MISCONF", (), "MISCONF"),
    ("NOREPLICAS", (), "NOREPLICAS"),
    # redis-py's ClusterError: after 16 redirections.
    ("moving", (e.TryAgainError, e.ClusterError), _NEVER),
    ("single", (), f"cluster support disabled|Cluster mode is not enabled|{_unknown('cluster')}"),
    ("handshake", (), f"{_unknown('hello|auth|select')}|SELECT is not allowed"),
    ("unknown", (), _unknown(r"[\w.|-]*")),
    ("moved", (e.MovedError, e.AskError), _NEVER),
    ("away", (redis.ConnectionError, OSError, e.RedisClusterException, e.InvalidResponse), _NEVER),
    ("other", (BaseException,), _NEVER),
)
"""Exception types and texts of each cause; the first match counts. redis-py removes some codes of Redis from the text."""


def cause_of(error: BaseException, *, cluster: bool = False) -> str:
    """Return the cause of an error of redis-py: one of REFUSALS, or another one if all commands fail.

    ``cluster``: whether the client is one of a Cluster, which follows redirections.
    """
    error = _answered(error)
    message = _message_of(error)
    cause = next(cause for cause, kinds, text in _SIGNS if isinstance(error, kinds) or re.search(text, message))
    return "moving" if cluster and cause == "moved" else cause


def _message_of(error: BaseException) -> str:
    """Return the server's message. A pipeline's error begins with the command that was sent, whose script quotes messages."""
    return str(error).rpartition("caused error: ")[2]


def _command_in(error: BaseException) -> str:
    """Return the command that an error names; "a command" if it names none."""
    found = re.search(
        r"(?i)command\W{0,3}(?!called)([a-z]+)|the '([a-z]+)[|'][^.]{0,20}command|^(select) is not", _message_of(error)
    )
    name = (found[1] or found[2] or found[3]).upper() if found is not None else ""
    return f"the command {name}" if name in _COMMANDS else "a command"


def explain(error: BaseException, connection: Connection, what: str = "") -> str:
    """Return a sentence about an error of redis-py for the operator, without passwords.

    Args:
        what: what the server is used for: "of the response caches".
    """
    error = _answered(error)
    command = _command_in(error)
    advice = _ADVICE[cause_of(error, cluster=connection.cluster)].format(
        command=command,
        remedy=_REMEDIES.get(command.rpartition(" ")[2], "").format(settings=connection.settings),
        settings=connection.settings,
        timeout_s=connection.timeout_s,
        kind=type(error).__name__,
        file=error if isinstance(error, PasswordFileError) else "",
        verdict=verdict(getattr(error, "verify_code", 0)),
    )
    return " ".join(filter(None, ("Redis", what, "at", connection.where, advice)))


def _answered(error: BaseException) -> BaseException:
    """Return the underlying error: a node's answer, which a Cluster's client wraps, or an error of TLS or of a file."""
    while isinstance(error, e.RedisClusterException) and not isinstance(error, e.SlotNotCoveredError):
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, ERRORS):
            break
        error = inner
    below = error.__context__
    if isinstance(below, (ssl.SSLError, FileNotFoundError)) and not isinstance(error, PasswordFileError):
        return below
    return error


class Health:
    """Whether a Redis answers, when to retry, and when to connect again.

    It logs each cause of failure until Redis answers again once an hour.

    Args:
        connection: the connection, for messages.
        what: what the server is used for, for the log.
        count: called with the cause (one of REFUSALS) of each refused command.
        backoff: time before a retry, by the number of consecutive failures.
        clock: monotonic, seconds.

    Attributes:
        failures: number of consecutive failures.
        healthy: whether the last command was answered; False before the first.
        outdated: whether the owner should replace its connections, since another server may stand behind the address; the
            owner resets it.
    """

    def __init__(
        self,
        connection: Connection,
        what: str = "",
        count: Callable[[str], object] = lambda _cause: None,
        *,
        backoff: AbstractBackoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        self.healthy = False
        self.outdated = False
        self._connection = connection
        self._what = what
        self._count = count
        self._backoff = backoff or EqualJitterBackoff(cap=5.0, base=0.05)
        self._clock = clock
        self._retry_at = self._renewed_at = -float("inf")
        self._logged: dict[str, float] = {}

    @property
    def resting(self) -> bool:
        """Whether it is too early for a retry."""
        return self._clock() < self._retry_at

    def rest(self, seconds: float) -> None:
        """Allow no command for this time."""
        self._retry_at = self._clock() + seconds

    def failed(self, error: BaseException) -> None:
        """Record that Redis could not be used."""
        self.failures += 1
        self.healthy = False
        self.outdated = True
        self.rest(self._backoff.compute(min(self.failures, 16)))
        if self._is_new(reason := explain(error, self._connection, self._what)):
            log.warning("%s. Until then serving goes on without it", reason)

    def refused(self, error: Exception) -> str:
        """Record that Redis refused one command; return the cause, one of REFUSALS."""
        cause = cause_of(error, cluster=self._connection.cluster)
        reason = explain(error, self._connection, self._what)
        if cause == "other" and not isinstance(error, redis.ResponseError):
            log_bug(log, f"a command to Redis {self._what}", error)  # redis-py did not send it
        self._count(cause)
        if cause not in OF_A_KEY and self._clock() - self._renewed_at >= RENEW_S:
            self._renewed_at = self._clock()
            self.outdated = True
        if self._is_new(reason):
            log.log(logging.WARNING if cause == "moving" else logging.ERROR, "%s. Other commands still work", reason)
        return cause

    def answered(self) -> None:
        """Record that Redis has answered."""
        self.healthy = True
        if self.failures:
            self.failures = 0
            self._logged.clear()
            log.info("Redis %s answers again", self._what or f"at {self._connection.where}")

    def _is_new(self, reason: str) -> bool:
        now = self._clock()
        new = now - self._logged.get(reason, -float("inf")) >= LOG_AGAIN_S
        if new:
            self._logged[reason] = now
        return new
