"""LMCache's token trace: spans `mp.request.trace` with `lmcache.input_ids`, one per look-up, in files of a collector.

Source: LMCache 0.5.7rc2 (`lmcache server --enable-token-trace`). A span has the time of the look-up, the request's name
`session_id` and the prompt's token ids. They are an array, as a collector writes it, or a text of JSON.

- **Look-ups**: an engine looks a request up again after a preemption, then with the tokens that it has generated. The first
  look-up of a name counts; a later one with another prompt under the same name is another request.
- **Conversations** are not in it: `session_id` is of one request. They are recovered as those of Mooncake's traces.
- **Replies**, salts and ends are not in it. So nothing of a reply is cached, and tenants share what is equal.
- **Blocks** have BLOCK_TOKENS tokens, as in vLLM. Prompts of different models share nothing.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from lpc_apps.logs.chats.fields import decoded, first_of, moment, name_of
from lpc_apps.logs.chats.otel import spans_of, start_of
from lpc_apps.logs.records import Misfit, OtherRecord, Record, Skipped, WithoutPrompt, WrongRecord, read_records
from lpc_apps.logs.traces.mooncake import Nameless, requests_of
from lpc_apps.logs.traces.request import BlockIds, Trace, in_order
from lpc_apps.logs.traces.sample import WHOLE, Sample

BLOCK_TOKENS: Final = 16
SPAN: Final = "mp.request.trace"
IDS: Final = "lmcache.input_ids"
MODEL: Final = "lmcache.model"
REQUEST: Final = "session_id"
AGAIN: Final = "looked up again: the request's first look-up counts"
_SCALARS: Final = ("intValue", "int_value", "stringValue", "string_value")


@dataclass(frozen=True, slots=True)
class _Lookup:
    """``rest``: tokens behind the last full block. ``place``: where it is in the log."""

    time: float
    name: str | None
    model: str | None
    blocks: tuple[int, ...]
    rest: bytes
    place: str = field(default="", compare=False)

    @property
    def tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + len(self.rest) // 4

    def begins(self, later: "_Lookup") -> bool:
        """Return whether a later look-up has this one's prompt at its start."""
        if self.model != later.model or self.blocks != later.blocks[: len(self.blocks)]:
            return False
        return len(later.blocks) > len(self.blocks) or later.rest.startswith(self.rest)


def has_shape(record: Record) -> bool:
    """Return whether a record has such a span."""
    return any(_is_lookup(span) for span in spans_of(record))


def check(record: Record) -> None:
    """Raise WrongRecord for a record without a span that can be read."""
    wrong: WrongRecord = OtherRecord("no span")
    for found in _prompts(record):
        if not isinstance(found, WrongRecord):
            return
        wrong = found
    raise wrong


def read_lmcache(path: Path, sample: Sample = WHOLE) -> Trace:
    """Read a trace of look-ups, or a sample of it. Raises TraceError: see `lpc_apps.logs.records.read_records`."""
    in_sample = sample.checker(lambda: (_parts(prompt) for _, (_, prompt) in read_records(path, _prompts, Skipped())))
    skipped, chains = Skipped(), BlockIds()

    def parse(record: Record) -> Iterator[_Lookup | WrongRecord]:
        for found in _prompts(record):
            if isinstance(found, WrongRecord):
                yield found
                continue
            lookup, prompt = found
            try:
                in_sample(_parts(prompt))
            except WrongRecord as wrong:
                yield wrong
                continue
            full = len(prompt) // BLOCK_TOKENS
            hashes = [hash(block) for block in _blocks(prompt[: full * BLOCK_TOKENS])]
            rest = prompt[full * BLOCK_TOKENS :].tobytes()
            yield replace(lookup, blocks=chains.chain(hashes, within=lookup.model), rest=rest)

    placed = ((place, replace(lookup, place=place)) for place, lookup in read_records(path, parse, skipped))
    first: dict[str, _Lookup] = {}
    lines = []
    for lookup in in_order(placed, lambda lookup: (lookup.time,), skipped, path):
        if lookup.name is not None and first.setdefault(lookup.name, lookup) is not lookup:
            if first[lookup.name].begins(lookup):
                skipped.note(AGAIN, lookup.place, other=True)
                continue
            first[lookup.name] = lookup
        lines.append(Nameless(lookup.time, lookup.tokens, 0, lookup.blocks, len(lookup.blocks)))
    return Trace(path.name, BLOCK_TOKENS, requests_of(lines), start=lines[0].arrival, decodes=False, skipped=skipped)


def _prompts(record: Record) -> Iterator[tuple[_Lookup, "array[int]"] | WrongRecord]:
    """Yield the look-ups of a record, without blocks, and their token ids; a span that is not one as WrongRecord."""
    for span in spans_of(record):
        try:
            if not _is_lookup(span):
                raise OtherRecord("not a span of a look-up")
            found = _attributes(span)
            prompt = _ids(found.get(IDS))
            time = moment(start_of(span))
            yield _Lookup(time, name_of(_scalar(found.get(REQUEST))), name_of(_scalar(found.get(MODEL))), (), b""), prompt
        except WrongRecord as wrong:
            yield wrong


def _is_lookup(span: Record) -> bool:
    """Return whether a span is named as LMCache names it, or has its token ids under another name."""
    return span.get("name") == SPAN or IDS in _attributes(span)


def _attributes(span: Record) -> Record:
    """Return a span's attributes by name; their values are not read, because a prompt has many."""
    found = span.get("attributes")
    if isinstance(found, dict):
        return found
    pairs = found if isinstance(found, list) else []
    return {pair["key"]: pair.get("value") for pair in pairs if isinstance(pair, dict) and isinstance(pair.get("key"), str)}


def _scalar(value: Any) -> Any:
    return first_of(value, *_SCALARS) if isinstance(value, dict) else value


def _ids(value: Any) -> "array[int]":
    """Return token ids. Raises Misfit, or WithoutPrompt if there are none."""
    if isinstance(value, dict):
        listed = first_of(value, "arrayValue", "array_value")
        value = first_of(listed, "values") or [] if isinstance(listed, dict) else _scalar(value)
    value = decoded(value)
    if not isinstance(value, list):
        raise Misfit(f"{IDS} is not a list of token ids")
    if not value:
        raise WithoutPrompt(f"{IDS} is empty")
    try:
        return array("I", _numbers(value))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise Misfit(f"{IDS} is not a list of token ids") from None


def _numbers(values: list[Any]) -> list[int]:
    """Return whole numbers, which OTLP's JSON has as text in objects. Raises KeyError, TypeError, ValueError."""
    kinds = {*map(type, values)}
    if kinds == {dict}:
        values = list(map(itemgetter(next((name for name in _SCALARS if name in values[0]), "")), values))
        kinds = {*map(type, values)}
    if kinds == {str} and (digits := "".join(values)).isascii() and digits.isdigit():
        return list(map(int, values))
    if kinds != {int}:
        raise TypeError
    return values


def _blocks(prompt: "array[int]") -> Iterator[bytes]:
    size = BLOCK_TOKENS * prompt.itemsize
    packed = prompt.tobytes()
    return (packed[at : at + size] for at in range(0, len(packed), size))


def _parts(prompt: "array[int]") -> Sequence[bytes]:
    """Return the parts of a prompt by which a sample is drawn."""
    return list(_blocks(prompt))
