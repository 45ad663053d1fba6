"""Coding-agent sessions (callanjfox/kv-cache-tester, Apache-2.0) as one trace with N concurrent sessions.

Format: a tar of one JSON per session with `block_size` and `requests` of `t` s, `in`, `out`, `hash_ids` (local to the session),
`stop`, `api_time` s. Requests of a session have their recorded intervals. The best predictor of a session's return is why the
reply ended (a tool call or the end of the turn). An engine sees it in the reply; it is the category of the next request.
"""

import json
import random
import tarfile
from pathlib import Path
from typing import Any, Final

from lpc.logs.traces.request import BlockIds, Trace, TracedRequest, TraceError

ACTIVE_SESSIONS: Final = 20


def read_agent_sessions(path: Path, *, active: int = ACTIVE_SESSIONS, seed: int = 0) -> Trace:
    """Return the sessions as a trace, in a random order.

    Raises:
        TraceError: the file is not an archive of agent sessions.
    """
    sessions = _sessions(path)
    random.Random(seed).shuffle(sessions)
    block_tokens = int(sessions[0]["block_size"])
    free_at = [0.0] * active
    requests = []
    ids = BlockIds()
    for number, session in enumerate(sessions):
        slot = min(range(active), key=free_at.__getitem__)
        start = free_at[slot]
        kind = ""
        for turn, record in enumerate(session["requests"], 1):
            blocks = ids.chain(record["hash_ids"][: record["in"] // block_tokens], within=number)
            arrival = start + record["t"]
            took = record.get("api_time") or 0.0
            reply_end = str(record.get("stop") or "unknown")
            requests.append(
                TracedRequest(
                    *(arrival, record["in"], record["out"], blocks, session["id"], turn, kind),
                    reply_end=reply_end,
                    served_s=took,
                )
            )
            kind = reply_end
            free_at[slot] = max(free_at[slot], arrival + took)
    requests.sort(key=lambda request: request.arrival)
    return Trace(path.name, block_tokens, requests)


def _sessions(path: Path) -> list[dict[str, Any]]:
    sessions = []
    try:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                file = archive.extractfile(member) if member.name.endswith(".json") else None
                if file is not None:
                    session = json.load(file)
                    session["requests"] = [r for r in session["requests"] if r.get("hash_ids") and r["in"] > 0]
                    if session["requests"]:
                        sessions.append(session)
    except (OSError, tarfile.TarError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} holds a file that is not an agent session ({type(error).__name__}: {error})") from error
    if not sessions:
        raise TraceError(f"{path} holds no agent sessions")
    return sessions
