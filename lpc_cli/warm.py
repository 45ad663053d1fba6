"""`lpc warm`: sends the prefixes that the plug-in has listed to a restarted engine, so that the first requests hit."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from lpc.errors import LpcError
from lpc_cli.options import JsonOutput
from lpc_cli.outcome import report
from lpc_cli.pages import Address

FORMAT: Final = "learned-prefix-cache prefixes"
"""First field of the file; see `eviction_client.prefixes`, which this environment may not have the engine for."""
MOST_BYTES: Final = 64 * 2**20
TIMEOUT_S: Final = 600.0
"""Longest wait for one answer: a prefill may take minutes."""
IN_VAIN: Final = 5
"""Failures in succession that end a run."""
MOST_ANSWER: Final = 1 << 20


class WarmError(LpcError):
    """Nothing can be warmed."""


class Listed(NamedTuple):
    """A file: the name of the model that made it, and token ids by prefix, the most reused first."""

    model: str
    prefixes: Sequence[Sequence[int]]


def warm(
    file: Annotated[Path, typer.Argument(help="File prefixes-N.jsonl of the plug-in's LPC_STATE.")],
    engine: Annotated[str, typer.Option(help="Base URL of the engine, without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Name of the model at the engine; default: that in the file.")] = "",
    key_file: Annotated[Path | None, typer.Option(help="File with the engine's API key.")] = None,
    rate: Annotated[float, typer.Option(min=0.01, max=1000, help="Most requests per second, one at a time.")] = 5.0,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Most requests.")] = 100,
    most_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of all requests.")] = 1_000_000,
    as_json: JsonOutput = False,
) -> None:
    """Prefill a restarted engine's cache with the prompts' beginnings that were reused most before.

    The plug-in lists them if LPC_LIST_PREFIXES is set. Each is sent to /v1/completions as token ids, for one token of output.
    Run it after the engine's start and before it gets traffic.
    """
    from lpc.wire.tokens import TokenFileError, token_in

    address = Address.parse(engine)
    key = None if key_file is None else token_in(key_file, TokenFileError)
    server = Engine(address, key)

    def warmed() -> dict[str, int]:
        return run(server, read(file), model, rate=rate, most=most, most_tokens=most_tokens)

    done = report(warmed, None, as_json=as_json)
    if not as_json:
        typer.echo(", ".join(f"{name} {count:,}" for name, count in done.items()))


def read(path: Path) -> Listed:
    """Return a file's prefixes. Raises WarmError, which quotes nothing of it."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)  # of a pipe or device the size is unknown
        if len(text) > MOST_BYTES:
            raise WarmError(f"{path} has more than {MOST_BYTES >> 20} MiB: name a file prefixes-*.jsonl of LPC_STATE")
        head, *lines = map(json.loads, text.decode("ascii").splitlines())
        found = [line["tokens"] for line in lines]
        valid = head["format"] == FORMAT and isinstance(head["model"], str) and all(map(_are_ids, found))
    except (ValueError, LookupError, TypeError, RecursionError):
        valid = False
    except OSError as error:
        raise WarmError(f"cannot read {path}: {error.strerror or type(error).__name__}") from error
    if not valid:
        raise WarmError(f"{path} is not a list of prefixes: name a file prefixes-*.jsonl of the plug-in's LPC_STATE")
    return Listed(head["model"], found)


def _are_ids(tokens: Any) -> bool:
    return isinstance(tokens, list) and bool(tokens) and all(type(one) is int and 0 <= one < 2**31 for one in tokens)


class Engine:
    """An OpenAI-compatible server. It is asked directly, without a proxy."""

    def __init__(self, address: Address, key: str | None) -> None:
        self._address = address
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect).open
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        elif address.credentials:
            self._headers["authorization"] = address.credentials

    def models(self) -> list[str]:
        """Return the names of its models. Raises WarmError."""
        answer = self._ask("/v1/models", None)
        try:
            return [str(one["id"]) for one in answer["data"]]
        except (LookupError, TypeError):
            raise WarmError(f"{self._address.url} is not an OpenAI-compatible server: name one with --engine") from None

    def prefill(self, model: str, tokens: Sequence[int]) -> tuple[int, int]:
        """Let it compute a prompt; return its tokens and those that were cached already. Raises WarmError."""
        body = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "stream": False}
        usage = self._ask("/v1/completions", body).get("usage")
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        whole = usage.get("prompt_tokens")
        return whole if isinstance(whole, int) else len(tokens), cached if isinstance(cached, int) else 0

    def _ask(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        address = self._address.with_path(self._address.path.removesuffix("/v1") + path)
        asked = urllib.request.Request(address.url, data, self._headers)
        try:
            with self._open(asked, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(MOST_ANSWER))
        except urllib.error.HTTPError as error:
            error.close()
            hint = ": give --key-file" if error.code in (401, 403) else ""
            raise WarmError(f"{self._address.url} answers HTTP {error.code} to {path}{hint}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise WarmError(f"{self._address.url} does not answer ({reason!s:.100}): start it, or name another") from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise WarmError(f"{self._address.url} is not an OpenAI-compatible server: name one with --engine")
        return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could carry token ids and key elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse."""


def run(
    engine: Engine,
    listed: Listed,
    model: str = "",
    *,
    rate: float = 5.0,
    most: int = 100,
    most_tokens: int = 1_000_000,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, int]:
    """Send prefixes in order. Return how many were sent, their tokens, and what was cached or failed.

    Raises WarmError if the model is not at the engine, after `IN_VAIN` failures in succession, or if all requests failed.
    """
    done = {"sent": 0, "tokens": 0, "cached_tokens": 0, "failed": 0}
    served, name = engine.models(), model or listed.model
    if name not in served:
        raise WarmError(
            f"the engine serves {', '.join(served)[:200] or 'nothing'}, and not {name:.100}, whose token ids these are: if it "
            "is the same model under another name, give --model"
        )
    in_vain = planned = 0
    latest: WarmError | None = None
    for tokens in listed.prefixes[:most]:
        if planned + len(tokens) > most_tokens:
            continue
        planned += len(tokens)
        try:
            whole, cached = engine.prefill(name, tokens)
        except WarmError as error:
            latest = error
            done["failed"] += 1
            in_vain += 1
            if in_vain == IN_VAIN:
                raise WarmError(f"{IN_VAIN} requests in succession failed, the last one: {error}") from None
        else:
            in_vain = 0
            done["sent"] += 1
            done["tokens"] += whole
            done["cached_tokens"] += cached
        sleep(1 / rate)
    if latest is not None and not done["sent"]:
        raise WarmError(f"no request succeeded, the last one: {latest}")
    return done
