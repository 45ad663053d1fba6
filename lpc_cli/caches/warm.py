"""`lpc cache warm`: fetches the answers to expected questions through the gateway."""

import contextlib
import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lpc.errors import LpcError, UsageError
from lpc.wire.tokens import TokenFileError, token_in
from lpc_cli.options import JsonOutput
from lpc_cli.outcome import report

if TYPE_CHECKING:
    import httpx2

    from response_cache.gateway.warming import Warmed

DAY_S: Final = 86_400
LOOK_S: Final = 60.0
"""Seconds after which --daily reads the clock again, which may be set."""


def warm(
    file: Annotated[Path | None, typer.Argument(help="Request bodies of chats or completions, JSON lines.")] = None,
    yesterday: Annotated[bool, typer.Option("--yesterday", help="Ask this client's frequent questions of yesterday.")] = False,
    gateway: Annotated[str, typer.Option(help="Base URL of the gateway.")] = "http://127.0.0.1:8080",
    token_file: Annotated[Path | None, typer.Option(help="File with the token of the client that owns the answers.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate authority of the gateway, PEM.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="Scope of the requests; may be repeated.")] = None,
    rate: Annotated[float, typer.Option(min=0.01, max=1000, help="Most requests per second that reach an engine.")] = 5.0,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Most requests per scope that reach an engine.")] = 100,
    daily: Annotated[str | None, typer.Option(help="Go on: repeat it each day at this time of UTC, HH:MM.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Fetch answers into the response caches, slowly, before users ask.

    What is cached already reaches no engine, so a run can be repeated. --yesterday needs `warm_up` in the scope's settings.
    """
    import asyncio

    if (file is None) != yesterday:
        raise UsageError("name a FILE or --yesterday, and not both")
    at_s = None if daily is None else _seconds_of(daily)

    async def once() -> "Warmed":
        return await _once(file, _client(gateway, token_file, ca), scope or [""], rate, most)

    if at_s is None:
        done = report(lambda: asyncio.run(once()).figures(), None, as_json=as_json)
        if not as_json:
            typer.echo(_line(done))
        return
    signal.signal(signal.SIGTERM, _end)  # as process 1 of a container it would be ignored
    while True:
        try:
            print_line(_line(asyncio.run(once()).figures()))
        except LpcError as error:
            print_line(f"error: {error}; the next run is at {daily} UTC", err=True)
        except Exception as error:  # a fault of this program must not end the next days' runs; its text may be a user's
            print_line(
                f"internal error: {type(error).__name__}: report it, with the version; the next run is at {daily} UTC", err=True
            )
        sleep_until(at_s)


def sleep_until(at_s: int) -> None:
    """Return at the next time that is ``at_s`` seconds after midnight of UTC, even if the clock is set."""
    day = _day(at_s)
    while (now := _day(at_s)) <= day:
        day = now  # the clock may have been set back
        time.sleep(min((at_s - time.time()) % DAY_S or DAY_S, LOOK_S))


def _day(at_s: int) -> int:
    return math.floor((time.time() - at_s) / DAY_S)


def print_line(line: str, *, err: bool = False) -> None:
    """Print a line. On a full disk it is lost, which must not end the next days' runs."""
    with contextlib.suppress(OSError):
        typer.echo(line, err=err)


async def _once(file: Path | None, client: "httpx2.AsyncClient", scopes: list[str], rate: float, most: int) -> "Warmed":
    from response_cache.gateway.warming import Warmed, Warmer, read_requests

    warmed = Warmed()
    async with client:
        for scope in scopes:
            warmer = Warmer(client, scope, rate, most)
            await warmer.run(await warmer.yesterday() if file is None else read_requests(file, warmed), warmed)
    return warmed


def _end(*_: object) -> None:
    raise SystemExit(0)


def _line(figures: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in figures.items())


def _client(gateway: str, token_file: Path | None, ca: Path | None) -> "httpx2.AsyncClient":
    """Return a client of the gateway. Raises UsageError, and CertificateError and TokenFileError for the files."""
    import ssl

    import httpx2

    from lpc.wire.certificates import CertificateError
    from response_cache.gateway.warming import TIMEOUT_S

    try:
        headers = {} if token_file is None else {"authorization": f"Bearer {token_in(token_file, TokenFileError)}"}
        verify = True if ca is None else ssl.create_default_context(cafile=ca)
        return httpx2.AsyncClient(base_url=gateway, headers=headers, verify=verify, timeout=TIMEOUT_S, trust_env=False)
    except ssl.SSLError:
        raise CertificateError(f"{ca} has no certificate in PEM: give the authority of the gateway's certificate") from None
    except OSError as error:
        raise CertificateError(f"cannot read {error.filename or ca}: {error.strerror}") from error
    except (ValueError, httpx2.InvalidURL):
        raise UsageError("invalid --gateway or token: use http://HOST:PORT, and a file with the token alone") from None


def _seconds_of(text: str) -> int:
    """Return the seconds since midnight. Raises UsageError."""
    try:
        found = time.strptime(text, "%H:%M")
    except ValueError:
        raise UsageError(f'invalid --daily "{text}": use HH:MM') from None
    return found.tm_hour * 3600 + found.tm_min * 60
