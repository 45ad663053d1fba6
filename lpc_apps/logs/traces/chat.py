"""Logs of chats (`lpc_apps.logs.chats`) as traces and as conversations.

- **Blocks** are chained hashes of the rendered prompt in blocks of 64 characters (64 bits, with a key of the process). The
  prompt is the tool definitions and all messages with all parts, so a turn's blocks are a prefix of the next turn's. A medium
  is as long as its tokens. Prompts of different models, or with different cache salts, share nothing.
- **Tokens** come from the log if it has them, else from the estimate. A block has 16 tokens, 4 characters each, unless the
  counted prompts show other tokens per character: then the median of the prompts of at least SURE_TOKENS tokens decides.
- **Media** have estimated tokens. If the log has the prompt's tokens, what is left after text and known media is shared among
  the media seen first in it.
- **Conversations** are identified by `session`. Without it, a request continues the earlier request of the same `user` with
  the longest list of messages (and reply, if logged) that is a proper prefix of its own; the latest among equals.
- **Turns** are the number of requests, or of user messages if that is higher (the log may begin in mid-conversation).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from lpc.model.conversation import Message
from lpc_apps.logs.chats import Reader, chat, read_chats
from lpc_apps.logs.chats.request import MEDIA_TOKENS, LoggedMessage, LoggedRequest, Part, rendered
from lpc_apps.logs.datasets.conversation import Conversation
from lpc_apps.logs.records import Misfit, Skipped, WithoutPrompt
from lpc_apps.logs.traces.request import FAR_AWAY, BlockIds, Trace, TracedRequest, in_order
from lpc_apps.logs.traces.sample import WHOLE, Sample

BLOCK_TOKENS: Final = 16
CHARS_PER_TOKEN: Final = 4
BLOCK_CHARS: Final = BLOCK_TOKENS * CHARS_PER_TOKEN
SURE_TOKENS: Final = 256
"""Estimated tokens of a prompt in which the template's own text does not matter for the ratio of characters and tokens."""
BLOCK_TOKENS_RANGE: Final = (8, 64)
"""Tokens of a block from 8 characters per token to one."""
MOST_TOKENS_PER_CHAR: Final = 2
TEMPLATE_TOKENS: Final = 1_000
"""More tokens of a prompt than these, those of the template aside, do not come from its text."""
MEDIUM_RANGE: Final = (BLOCK_TOKENS, 65_536)
SETTLED_S: Final = 3600.0
"""A conversation with a request in the last seconds of the log may not have ended."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A request without its text.

    ``chars``: of the rendered prompt and reply. ``prefixes``: ids of its lists of messages. ``name``: see `_name`.
    """

    time: float
    blocks: tuple[int, ...]
    with_reply: tuple[int, ...] | None
    chars: int
    reply_chars: int
    has_media: bool
    asked: int
    prefixes: tuple[int, ...]
    replied: int | None
    session: str | None
    group: str | None
    input_tokens: int | None
    output_tokens: int | None
    category: str
    user: str
    tenant: str
    text_blocks: tuple[int, ...]
    name: int


def read_chat(path: Path, reader: Reader, sample: Sample = WHOLE, *, texts: bool = False) -> Trace:
    """Read a log of chats, or a sample of it, as a trace. Raises TraceError: see `lpc_apps.logs.records.read_records`.

    Args:
        texts: also read the blocks of the messages' text alone.
    """
    in_sample = sample.checker(lambda: (_parts(request) for _, request in read_chats(path, reader, Skipped())))
    between = -math.inf, math.inf

    def check(request: LoggedRequest) -> None:
        _refuse_part(request)
        if not between[0] <= request.time <= between[1]:
            raise WithoutPrompt(FAR_AWAY)
        in_sample(_parts(request))

    skipped, reading, lines = _lines(path, reader, check, texts=texts)
    if FAR_AWAY in skipped.counts:
        # What is skipped must not decide the tokens of media or of blocks.
        between = lines[0].time, lines[-1].time
        skipped, reading, lines = _lines(path, reader, check, texts=texts)
    names: dict[int, int] = {}

    def numbered(blocks: tuple[int, ...]) -> tuple[int, ...]:
        """Return ids that count up in order of time."""
        return tuple(names.setdefault(block, len(names)) for block in blocks) if reading.unordered else blocks

    block_tokens = _block_tokens(lines)
    start = lines[0].time
    conversations = _Conversations()
    requests = []
    for line in lines:
        conversation, turn = conversations.place(line)
        requests.append(
            TracedRequest(
                line.time - start,
                line.input_tokens if line.input_tokens is not None else _tokens(line.chars, block_tokens),
                line.output_tokens if line.output_tokens is not None else _tokens(line.reply_chars, block_tokens),
                numbered(line.blocks),
                conversation,
                turn,
                line.category,
                with_reply=None if line.with_reply is None else numbered(line.with_reply),
                user=line.user,
                tenant=line.tenant,
                text_blocks=line.text_blocks,
            )
        )
    return Trace(path.name, block_tokens, requests, start=start, skipped=skipped, estimated=reading.estimated())


def _refuse_part(request: LoggedRequest) -> None:
    """Raise Misfit if a prompt has so many tokens that its text cannot be all of it; not if a part is known to be left out."""
    if request.input_tokens is None or request.left_out:
        return
    parts = [part for message in request.messages for part in message.parts]
    if any(part.kind in MEDIA_TOKENS or part.kind in ("data", "reasoning") for part in parts):
        return
    chars = sum(len(part.text) for part in (*parts, *request.tools))
    if request.input_tokens > MOST_TOKENS_PER_CHAR * chars + TEMPLATE_TOKENS:
        raise Misfit("the prompt has more tokens than its text: earlier messages are not in the record")


def _lines(
    path: Path,
    reader: Reader,
    check: Callable[[LoggedRequest], None],
    *,
    texts: bool,
) -> "tuple[Skipped, _Reading, list[_Line]]":
    """Return the requests of a log in order of time, what was skipped, and what was learnt about media."""
    skipped, reading = Skipped(), _Reading(texts=texts)
    placed = ((place, reading.line(request)) for place, request in read_chats(path, reader, skipped, check))
    return skipped, reading, in_order(placed, lambda line: (line.time,), skipped, path)


def _parts(request: LoggedRequest) -> Iterator[object]:
    """Yield the parts of a prompt, as families have them."""
    yield request.scope, request.tools
    for message in request.messages:
        yield message.role, message.parts


def chat_conversations(path: Path, skipped: Skipped | None = None) -> Iterator[Conversation]:
    """Yield each conversation of a gateway's log: its request with the most messages, and that one's response.

    A conversation that was active in the last SETTLED_S seconds of the log has no known end. Only text is in the messages.

    Raises:
        TraceError: see `lpc_apps.logs.records.read_records`.
    """
    skipped = skipped if skipped is not None else Skipped()
    reading = _Reading()
    placed = ((place, (reading.line(request), request)) for place, request in read_chats(path, Reader(chat.read), skipped))
    lines = in_order(placed, lambda found: (found[0].time,), skipped, path)
    places = _Conversations()
    longest: dict[str, LoggedRequest] = {}
    latest: dict[str, float] = {}
    for line, request in lines:
        conversation, _ = places.place(line)
        known = longest.get(conversation)
        if known is None or len(request.messages) >= len(known.messages):
            longest[conversation] = request
        latest[conversation] = line.time
    end = lines[-1][0].time
    for conversation, request in longest.items():
        messages = tuple(Message(message.role, message.text) for message in request.messages + request.reply)
        yield Conversation(conversation, messages, ended=end - latest[conversation] >= SETTLED_S)


class _Reading:
    """Turns requests into blocks, one at a time, so that no text is held.

    Args:
        texts: also into blocks of the messages' text alone.
    """

    def __init__(self, *, texts: bool = False) -> None:
        self._blocks, self._prefixes = BlockIds(), BlockIds()
        self._texts = BlockIds() if texts else None
        self._media: dict[Part, int] = {}  # tokens
        self._others: Counter[str] = Counter()
        self._latest = 0.0
        self._count = 0
        self.unordered = False

    def line(self, request: LoggedRequest) -> _Line:
        self.unordered = self.unordered or request.time < self._latest
        self._latest = max(self._latest, request.time)
        messages = request.messages
        parts = [part for message in messages + request.reply for part in message.parts]
        media = [part for part in parts if part.kind in MEDIA_TOKENS]
        if media:
            self._size(request, media)
        self._others.update(request.left_out)
        self._others["part of unknown kind"] += sum(part.kind == "data" for part in parts)
        texts = [rendered(message, self._filler) for message in messages]
        replies = [rendered(message, self._filler) for message in request.reply]
        prompt = "".join([*(f"tool {tool.text}\n" for tool in request.tools), *texts])
        # A history has the reply without its thoughts.
        said = [hash(self._said(message, text)) for message, text in zip(messages, texts, strict=True)]
        answer = None
        if replies:
            answer = hash("".join(self._said(*reply) for reply in zip(request.reply, replies, strict=True)))
        blocks = _block_hashes(prompt)
        full = len(prompt) // BLOCK_CHARS
        with_reply = blocks[:full] + _block_hashes(prompt[full * BLOCK_CHARS :] + "".join(replies))
        chained = self._prefixes.chain(said if answer is None else [*said, answer], within=request.user)
        return _Line(
            request.time,
            self._blocks.chain(blocks, within=request.scope),
            self._blocks.chain(with_reply, within=request.scope) if replies else None,
            len(prompt),
            sum(len(part.text) for message in request.reply for part in message.parts),
            bool(media),
            sum(message.is_user_turn for message in messages),
            chained[: len(said)],
            chained[-1] if answer is not None else None,
            request.session,
            request.group,
            request.input_tokens,
            request.output_tokens,
            request.category,
            request.user,
            request.salt,
            () if self._texts is None else self._texts.chain(_block_hashes(_text_of(messages)), within=request.scope),
            self._name(request),
        )

    def _name(self, request: LoggedRequest) -> int:
        """Return a number that equal records of one call have, and two calls do not.

        Without names of calls, records with a reply are equal if all else is. Without a reply, equal prompts of one whole
        second may be several calls.
        """
        if request.ids:
            return hash(request.ids)
        self._count += 1
        return 0 if request.reply or not request.time.is_integer() else self._count

    def estimated(self) -> dict[str, int]:
        """Return the number of different media by kind, and of other parts."""
        return {k: n for k, n in (Counter(part.kind for part in self._media) + self._others).items() if n}

    def _size(self, request: LoggedRequest, media: list[Part]) -> None:
        """Decide the tokens of media that were not seen before."""
        new = [part for part in dict.fromkeys(media) if part not in self._media]
        self._media.update({part: MEDIA_TOKENS[part.kind] for part in new})
        shown = [part for message in request.messages for part in message.parts if part.kind in MEDIA_TOKENS]
        unknown = [part for part in shown if part in new]
        if not unknown or request.input_tokens is None:
            return
        chars = sum(len(tool.text) for tool in request.tools)
        chars += sum(len(rendered(message, lambda _: "")) for message in request.messages)
        known = sum(self._media[part] for part in shown if part not in new)
        share = (request.input_tokens - chars // CHARS_PER_TOKEN - known) / sum(MEDIA_TOKENS[part.kind] for part in unknown)
        for part in unknown:
            tokens = round(MEDIA_TOKENS[part.kind] * share)
            self._media[part] = min(max(tokens, MEDIUM_RANGE[0]), MEDIUM_RANGE[1])

    def _said(self, message: LoggedMessage, text: str) -> str:
        """Return a rendered message without its thoughts."""
        kept = tuple(part for part in message.parts if part.kind != "reasoning")
        return text if len(kept) == len(message.parts) else rendered(LoggedMessage(message.role, kept), self._filler)

    def _filler(self, part: Part) -> str:
        length = self._media[part] * CHARS_PER_TOKEN
        return (part.text * -(-length // len(part.text)))[:length]


class _Conversations:
    """Finds the conversation of each request; requests must be in order of time."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._by_messages: dict[int, str] = {}  # id of the user and all messages -> conversation
        self._by_group: dict[str, str] = {}
        self._count = 0

    def place(self, line: _Line) -> tuple[str, int]:
        """Return conversation and turn."""
        conversation = self._by_prefix(line) if line.session is None else f"s:{line.session}"
        turn = self._turns[conversation] = max(self._turns.get(conversation, 0) + 1, line.asked)
        return conversation, turn

    def _by_prefix(self, line: _Line) -> str:
        # Only proper prefixes: two requests with equal messages are two conversations.
        known = self._by_messages
        conversation = next((known[prefix] for prefix in reversed(line.prefixes[:-1]) if prefix in known), None)
        if conversation is None and line.group is not None:
            conversation = self._by_group.get(line.group)
        if conversation is None:
            self._count += 1
            conversation = f"c{self._count}"
        known[line.prefixes[-1]] = conversation
        if line.replied is not None:
            known[line.replied] = conversation
        if line.group is not None:
            self._by_group[line.group] = conversation
        return conversation


def _block_tokens(lines: list[_Line]) -> int:
    """Return the tokens of a block of BLOCK_CHARS characters."""
    counted = [line for line in lines if line.input_tokens and line.chars >= SURE_TOKENS * CHARS_PER_TOKEN]
    ratios = [(line.input_tokens or 0) / line.chars for line in counted if not line.has_media]
    if not ratios:
        return BLOCK_TOKENS
    least, most = BLOCK_TOKENS_RANGE
    return min(max(round(median(ratios) * BLOCK_CHARS), least), most)


def _text_of(messages: Sequence[LoggedMessage]) -> str:
    """Return the text and the thoughts of messages, without roles, tools and arguments, as smg's text tree has them."""
    return "".join(part.text for message in messages for part in message.parts if part.kind in ("text", "reasoning"))


def _tokens(chars: int, block_tokens: int) -> int:
    return -(-chars * block_tokens // BLOCK_CHARS)


def _block_hashes(text: str) -> list[int]:
    return [hash(text[at : at + BLOCK_CHARS]) for at in range(0, len(text), BLOCK_CHARS)]
