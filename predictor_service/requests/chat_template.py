"""From the token ids of a served model's prompt back to the user turns.

An engine holds a prompt as ids: the chat template rendered and tokenised. How a template marks a user message is learnt once
per model, by rendering a few conversations of known sentinel texts: what always stands before a user text is the *opening*,
what always follows it the *closing*. Nothing is known of any particular template.

Markers are compared as ids. Added tokens such as `<|im_start|>` are atoms: a user who types those characters gets ordinary
tokens where the engine keeps text and markup apart, and then cannot forge a turn. Where an engine tokenises rendered text as
a whole, the forged marker is the same id as a real one and nobody can tell. Nor can anybody where a template's markers are
plain text (Zephyr's `<|user|>`).

Not recovered: white space around a user text; the border between system prompt and first user text in templates that glue
them (Mistral, Llama 2, Gemma): there the system prompt counts as part of the first user text.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from lpc.errors import InvalidRequest
from lpc.model.conversation import UserTurns, from_prompt

log = logging.getLogger(__name__)

MARK: Final = 0xF0000
"""Start of a private plane of Unicode: in marked text the character MARK + k stands for the k-th added token."""

USERS: Final = ("Zqalpha", "Zqbravo", "Zqcharlie")
ASSISTANTS: Final = ("Zqdelta", "Zqecho")
SYSTEM: Final = "Zqfoxtrot"
TOOL: Final = "Zqgolf"

MARKUP_TOKENS: Final = 24
"""Tokens looked at behind an added token for the name of a role."""


class Piece(NamedTuple):
    """An added token and the stripped text that follows it up to the next one."""

    marker: int
    text: str


@dataclass(frozen=True)
class UserMarkup:
    """How a template marks a user message, in marked text; and, where it starts and ends with added tokens, in ids.

    Attributes:
        opening, closing: marked text, stripped.
        pieces: the opening as pieces; empty when it holds no added token.
        end: id of the added token that closes a user message; None when plain text does.
        tool_text: what a tool's answer starts with where the template disguises it as a user message; may be empty.
    """

    opening: str
    closing: str
    pieces: tuple[Piece, ...]
    end: int | None
    tool_text: str


class ServedModel:
    """Tokenizer and chat template of a model that an engine serves. Thread-safe."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
        self._vocabulary = max(len(tokenizer), max(added, default=0) + 1)
        self._marker_ids = sorted(added)
        self._mark_of = {i: chr(MARK + k) for k, i in enumerate(self._marker_ids)}
        self._is_marker = np.zeros(self._vocabulary, np.bool_)
        self._is_marker[self._marker_ids] = True
        self.markup = self._learn()

    def user_turns(self, ids: Sequence[int], window: int) -> UserTurns:
        """Return the last ``window`` user prompts in a prompt of this model, and how many it has.

        A prompt without chat markup (of a completions API) counts as one user turn.

        Raises:
            InvalidRequest: an id is outside the vocabulary, or the prompt has no text.
        """
        array = np.asarray(ids, np.int64)
        outside = np.flatnonzero((array < 0) | (array >= self._vocabulary))
        if outside.size:
            position = int(outside[0])
            raise InvalidRequest(
                f"token id {int(array[position])} at position {position} is outside the vocabulary of {self.name} "
                f"({self._vocabulary} tokens): is served_model the model that the prompt was tokenised for?"
            )
        markup = self.markup
        turns = None
        if markup is not None:
            turns = self._by_ids(array, markup, window) if markup.pieces else self._by_text(array, markup, window)
        if turns is None:
            return from_prompt(self._decode(array))
        if not turns.prompts:
            raise InvalidRequest("the user messages of the prompt have no text")
        return turns

    def _by_ids(self, ids: NDArray[np.int64], markup: UserMarkup, window: int) -> UserTurns | None:
        """Find user messages by added tokens and decode only the last of them. None: there is no user message."""
        marks = np.flatnonzero(self._is_marker[ids])
        marker_ids = ids[marks]
        first, *rest = markup.pieces
        spans: list[tuple[int, int]] = []
        for k in np.flatnonzero(marker_ids == first.marker):
            last = k + len(rest)
            if last >= len(marks) or any(marker_ids[k + 1 + i] != piece.marker for i, piece in enumerate(rest)):
                continue
            between = zip(markup.pieces[:-1], range(k, last), strict=True)
            if any(marks[i + 1] - marks[i] > MARKUP_TOKENS or self._after(ids, marks, i) != p.text for p, i in between):
                continue
            start = int(marks[last]) + 1
            ends = np.flatnonzero(marker_ids[last + 1 :] == markup.end)
            end = int(marks[last + 1 + ends[0]]) if ends.size else len(ids)
            opening = self._decode(ids[start : min(end, start + MARKUP_TOKENS)]).lstrip()
            if not opening.startswith(markup.pieces[-1].text):
                continue
            if markup.tool_text and opening[len(markup.pieces[-1].text) :].lstrip().startswith(markup.tool_text):
                continue
            spans.append((start, end))
        if not spans:
            return None
        texts = [""] * len(spans)
        role = len(markup.pieces[-1].text)
        kept = i = 0
        for i in range(len(spans) - 1, -1, -1):
            start, end = spans[i]
            texts[i] = self._decode(ids[start:end]).lstrip()[role:].strip()
            kept += bool(texts[i])
            if kept == window:
                # Older ones are only counted; a blank one among them would count too, which costs a decoding to know.
                break
        # What is not decoded is taken to have as many characters per token as what is: decoding it all would cost more
        # than the encoder's tokenisation, for a length whose logarithm counts.
        density = sum(map(len, texts)) / max(sum(end - start for start, end in spans[i:]), 1)
        history = round((spans[-1][0] - spans[0][0]) * density)
        last_reply = round((spans[-1][0] - spans[-2][1]) * density) if len(spans) > 1 else 0
        return UserTurns(tuple(filter(None, texts[i:])), i + max(kept, 1), history, last_reply)

    def _by_text(self, ids: NDArray[np.int64], markup: UserMarkup, window: int) -> UserTurns | None:
        """Find user messages in decoded text: for templates whose markers are plain text. None: there is none."""
        text = self._marked(ids)
        prompts: list[str] = []
        found = False
        history = last_reply = begin = close = 0
        at = text.find(markup.opening)
        while at >= 0:
            if found:
                history, last_reply = at - begin, at - close
            else:
                begin = at
            found = True
            start = at + len(markup.opening)
            end = text.find(markup.closing, start) if markup.closing else -1
            end = len(text) if end < 0 else end
            prompt = self._unmarked(text[start:end]).strip()
            if prompt and not (markup.tool_text and prompt.startswith(markup.tool_text)):
                prompts.append(prompt)
            close = end
            at = text.find(markup.opening, end)
        return UserTurns(tuple(prompts[-window:]), max(len(prompts), 1), history, last_reply) if found else None

    def _after(self, ids: NDArray[np.int64], marks: NDArray[np.int64], k: int) -> str:
        """Return the stripped text between added token ``k`` and the next."""
        return self._decode(ids[marks[k] + 1 : marks[k + 1]]).strip()

    def _decode(self, ids: NDArray[np.int64]) -> str:
        return self._backend.decode(ids.tolist(), skip_special_tokens=True)  # type: ignore[no-any-return]

    def _marked(self, ids: NDArray[np.int64]) -> str:
        """Decode with every added token as one private character."""
        parts = []
        start = 0
        for at in [*np.flatnonzero(self._is_marker[ids]).tolist(), len(ids)]:
            parts.append(self._decode(ids[start:at]))
            if at < len(ids):
                parts.append(self._mark_of[int(ids[at])])
            start = at + 1
        return "".join(parts)

    def _unmarked(self, text: str) -> str:
        return "".join(c for c in text if ord(c) < MARK)

    def _learn(self) -> UserMarkup | None:
        """Learn how user messages are marked. None: there is no chat template, or it shows no user text."""
        renders = [text for text in map(self._render, _conversations()) if text is not None]
        before, after = [], []
        for text in renders:
            for user in USERS:
                head, found, tail = text.partition(user)
                # A template that glues the system prompt to a user text shows nothing of where user texts start.
                if found and SYSTEM not in head[1 + max((i for i, c in enumerate(head) if ord(c) >= MARK), default=-1) :]:
                    before.append(head)
                    after.append(tail)
        if not before:
            return None
        opening = commonprefix([head[::-1].lstrip() for head in before])[::-1]  # noqa: RUF071 (characters are meant)
        # A render that ends with the user text (no generation prompt) shows no closing.
        closing = commonprefix([tail.lstrip() for tail in after if tail.strip()]).strip()  # noqa: RUF071
        if not opening.strip():
            return None
        opening = self._shortest_unique(opening, renders)
        pieces = self._pieces(opening)
        end = self._marker_ids[ord(closing[0]) - MARK] if closing and ord(closing[0]) >= MARK else None
        return UserMarkup(
            opening=opening,
            closing=closing if end is None else closing[0],
            pieces=pieces if end is not None else (),
            end=end,
            tool_text=self._tool_text(opening),
        )

    def _shortest_unique(self, opening: str, renders: Sequence[str]) -> str:
        """Return the shortest end of the opening, from an added token on, that marks user texts only."""
        starts = [i for i, c in enumerate(opening) if ord(c) >= MARK]
        for start in reversed(starts):
            candidate = opening[start:]
            if all(text.count(candidate) == sum(text.count(user) for user in USERS) for text in renders):
                return candidate
        return opening.strip() if not starts else opening[starts[0] :]

    def _pieces(self, opening: str) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        for c in opening:
            if ord(c) >= MARK:
                pieces.append(Piece(self._marker_ids[ord(c) - MARK], ""))
            elif pieces:
                pieces[-1] = Piece(pieces[-1].marker, pieces[-1].text + c)
        return tuple(Piece(piece.marker, piece.text.strip()) for piece in pieces)

    def _tool_text(self, opening: str) -> str:
        for messages in _tool_conversations():
            text = self._render(messages)
            if text is None or TOOL not in text:
                continue
            head = text.partition(TOOL)[0]
            start = head.rfind(opening)
            disguise = self._unmarked(head[start + len(opening) :]).strip() if start >= 0 else ""
            if start >= 0 and ASSISTANTS[0] not in head[start:]:
                return disguise
        return ""

    def _render(self, messages: list[dict[str, Any]]) -> str | None:
        """Render and tokenise a conversation as an engine does; return marked text. None: the template refuses it."""
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=messages[-1]["role"] != "assistant"
            )
        except Exception:  # templates raise what they like
            return None
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return self._marked(np.asarray(ids, np.int64))


def _conversations() -> list[list[dict[str, Any]]]:
    user = [{"role": "user", "content": text} for text in USERS]
    assistant = [{"role": "assistant", "content": text} for text in ASSISTANTS]
    system = {"role": "system", "content": SYSTEM}
    dialogue = [user[0], assistant[0], user[1], assistant[1], user[2]]
    return [dialogue, [system, *dialogue], [user[0]], [user[0], assistant[0]]]


def _tool_conversations() -> list[list[dict[str, Any]]]:
    question = {"role": "user", "content": USERS[0]}
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
    answer = {"role": "tool", "name": "f", "content": TOOL, "tool_call_id": "call00001"}
    said = {"role": "assistant", "content": ASSISTANTS[0]}
    return [
        [question, {"role": "assistant", "content": ASSISTANTS[0], "tool_calls": [call]}, answer],
        [question, said, answer],
    ]
