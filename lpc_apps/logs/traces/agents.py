"""Coding-agent sessions (callanjfox/kv-cache-tester, Apache-2.0) as one trace with N concurrent sessions.

Format: a tar of one JSON per session with `block_size` and `requests` of `t` s, `in`, `out`, `hash_ids`, `stop`, `api_time` s.
Ids are local to the session unless `hash_id_scope` is `global`. An entry with `requests` of its own is a sub-agent, whose times
start at the entry's `t`, and so are the calls in another field of a call. It is a conversation with the session's blocks.
Requests of a session have their recorded intervals.
The best predictor of a session's return is why the reply ended (a tool call or the end of the turn). An engine sees it in the
reply; it is the category of the next request.
"""

import random
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final

from lpc_apps.logs.records import (
    DAMAGED,
    LONGEST_LINE,
    MOST_VALUES,
    Misfit,
    Record,
    Skipped,
    TooLarge,
    TraceError,
    WrongRecord,
    loads,
    log_files,
    name_of,
    refuse_remainder,
    unpacked,
)
from lpc_apps.logs.traces.request import BlockIds, Trace, TracedRequest, ids_of, packed, seconds, tokens

ACTIVE_SESSIONS: Final = 20
FEW_BLOCKS: Final = 2
FEW_SHARE: Final = 0.05
"""Blocks, and share of them, by which ids may differ from a prompt's tokens, which the provider counts with its tokenizer."""
OTHER_SIZE: Final = "block_size is not that of most sessions"


@dataclass(frozen=True, slots=True)
class _Call:
    at: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    reply_end: str
    took: float


@dataclass(frozen=True, slots=True)
class _Session:
    name: str
    block_tokens: int
    is_global: bool
    conversations: list[list[_Call]]
    """Its own calls, and those of each sub-agent."""
    retries: int


def is_archive(file: IO[bytes]) -> bool:
    """Return whether a file is a tar with a member. Zero bytes alone, as at the start of a log that was truncated, are not."""
    try:
        with tarfile.open(fileobj=file) as archive:
            return archive.next() is not None
    except tarfile.TarError:
        return False


def read_agent_sessions(path: Path, *, active: int = ACTIVE_SESSIONS, seed: int = 0) -> Trace:
    """Return the sessions as a trace, in a random order. Damaged sessions are skipped and counted.

    Raises:
        TraceError: the file cannot be read, or has no agent session.
    """
    skipped = Skipped()
    sessions = _sessions(path, skipped)
    random.Random(seed).shuffle(sessions)
    block_tokens = sessions[0].block_tokens
    free_at = [0.0] * active
    requests = []
    ids = BlockIds()
    for number, session in enumerate(sessions):
        slot = min(range(active), key=free_at.__getitem__)
        start = free_at[slot]
        within = None if session.is_global else number
        for agent, calls in enumerate(session.conversations):
            kind = ""
            name = f"{session.name}/{agent}" if agent else session.name
            for turn, call in enumerate(calls, 1):
                blocks = ids.chain(call.blocks[: call.input_tokens // block_tokens], within=within)
                arrival = start + call.at
                requests.append(
                    TracedRequest(
                        arrival=arrival,
                        input_tokens=call.input_tokens,
                        output_tokens=call.output_tokens,
                        blocks=blocks,
                        conversation=name,
                        turn=turn,
                        category=kind,
                        reply_end=call.reply_end,
                        served_s=call.took,
                    )
                )
                kind = call.reply_end
                free_at[slot] = max(free_at[slot], arrival + call.took)
    requests.sort(key=lambda request: request.arrival)
    return Trace(path.name, block_tokens, requests, skipped=skipped)


def _sessions(path: Path, skipped: Skipped) -> list[_Session]:
    found: list[tuple[str, _Session]] = []
    seen: dict[str, list[bytes]] = {}
    misfits = Skipped()
    files = log_files(path)
    for file in files:
        name = name_of(file, path)
        try:
            for place, digest, session in _members(file):
                if isinstance(session, _Session) and digest in seen.setdefault(session.name, []):
                    session = WrongRecord("session that is there twice")
                if isinstance(session, WrongRecord):
                    skipped.note(str(session), f"{name}:{place}")
                    if isinstance(session, Misfit):
                        misfits.note(str(session), f"{name}:{place}")
                    continue
                seen[session.name].append(digest)
                for _ in range(session.retries):
                    skipped.note("request without blocks: a retry", f"{name}:{place}", other=True)
                if (number := len(seen[session.name])) > 1:  # another session with this id
                    session = replace(session, name=f"{session.name} ({number})")
                found += [(f"{name}:{place}", session)] if any(session.conversations) else []
        except (OSError, *DAMAGED, tarfile.TarError) as error:
            broken = "it is not a tar archive, or damaged" if file.stat().st_size else "it is empty"
            reason = (error.strerror if isinstance(error, OSError) else None) or broken
            if len(files) == 1:
                raise TraceError(f"cannot read {path}: {reason}") from error
            skipped.note(f"file that cannot be read: {reason}", name)
    if not found:
        reasons = skipped.named()
        raise TraceError(f"{path} holds no agent sessions" + (f" ({reasons})" if reasons else ""))
    refuse_remainder(path, len(found), misfits)
    return _of_one_size(path, found, skipped)


def _of_one_size(path: Path, found: list[tuple[str, _Session]], skipped: Skipped) -> list[_Session]:
    """Return the sessions with the block size of most. Raises TraceError if too many have others."""
    size = Counter(session.block_tokens for _, session in found).most_common(1)[0][0]
    others = Skipped()
    for place, session in found:
        if session.block_tokens != size:
            skipped.note(OTHER_SIZE, place)
            others.note(OTHER_SIZE, place)
    kept = [session for _, session in found if session.block_tokens == size]
    refuse_remainder(path, len(kept), others)
    return kept


def _members(file: Path) -> list[tuple[str, bytes, _Session | WrongRecord]]:
    """Return name, digest and session of an archive's JSON files, by name.

    They are read in the order of the archive, because a step back unpacks it again from its start.
    """
    found: list[tuple[str, bytes, _Session | WrongRecord]] = []
    with unpacked(file) as packed, tarfile.open(fileobj=packed) as archive:
        for member in archive:
            packed_file = archive.extractfile(member) if member.name.endswith(".json") else None
            if packed_file is not None:
                content = packed_file.read(LONGEST_LINE + 1)
                found.append((member.name, blake2b(content, digest_size=16).digest(), _parsed(content)))
    return sorted(found, key=lambda member: member[0])


def _parsed(content: bytes) -> _Session | WrongRecord:
    try:
        if len(content) > LONGEST_LINE:
            return WrongRecord(f"longer than {LONGEST_LINE >> 20} MiB")
        return _session(loads(content))
    except WrongRecord as wrong:
        return wrong
    except TooLarge:
        return WrongRecord(f"more than {MOST_VALUES:,} values")
    except (ValueError, RecursionError):
        return WrongRecord("not JSON")


def _session(record: object) -> _Session:
    if not isinstance(record, dict):
        raise WrongRecord("not a JSON object")
    calls = record.get("requests")
    name = record.get("id")
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise WrongRecord("id is neither text nor a whole number")
    scope = record.get("hash_id_scope") or "local"
    if scope not in ("local", "global"):
        raise WrongRecord("hash_id_scope is neither local nor global")
    conversations: list[list[_Call]] = []
    size = tokens(record, "block_size", 1)
    retries = _gather(calls, 0.0, conversations, size, scope)
    return _Session(str(name), size, scope == "global", conversations, retries)


def _gather(calls: object, start: float, conversations: list[list[_Call]], size: int, scope: object) -> int:
    """Add the calls of an agent, whose times are from ``start``, as a conversation; then those of its sub-agents.

    Return the number of calls without blocks, or without a prompt, which are retries. Raises WrongRecord.
    """
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise WrongRecord("requests is not a list of objects")
    own: list[_Call] = []
    conversations.append(own)
    retries = 0
    for call in calls:
        if (call.get("hash_id_scope") or scope) != scope:
            raise WrongRecord("hash_id_scope of a request or a sub-agent is not its session's")
        inside = [value for key, value in call.items() if key == "requests" or _are_calls(value)]
        if call.get("hash_ids") and call.get("in") != 0:
            own.append(_call(call, start, size))
        elif not inside:
            retries += 1
        for found in inside:
            retries += _gather(found, start + seconds(call, "t"), conversations, size, scope)
    return retries


def _are_calls(value: object) -> bool:
    """Return whether a field of a call has the calls of a sub-agent, or sub-agents."""
    listed = value if isinstance(value, list) else []
    return any(isinstance(item, dict) and not {"hash_ids", "requests"}.isdisjoint(item) for item in listed)


def _call(call: Record, start: float, size: int) -> _Call:
    input_tokens = tokens(call, "in", 1)
    ids: Sequence[int] = packed(ids_of(call, "hash_ids"))
    if abs(len(ids) - input_tokens / size) > max(FEW_BLOCKS, FEW_SHARE * len(ids)):
        raise Misfit("hash_ids are not those of the prompt's tokens")
    took = call.get("api_time") or 0.0
    return _Call(
        start + seconds(call, "t"),
        input_tokens,
        tokens(call, "out"),
        ids,
        str(call.get("stop") or "unknown"),
        seconds(call, "api_time") if took else 0.0,
    )
