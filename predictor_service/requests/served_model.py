"""Recovers the user turns of a prompt from its token ids, for one model that engines serve.

An engine has a prompt as ids: the chat template rendered and tokenised. Markers are compared as ids. If the engine tokenises
text and markup separately, a user who types `<|im_start|>` gets ordinary tokens and cannot forge a turn. If it tokenises the
rendered text as a whole, or if a template's markers are plain text (Zephyr's `<|user|>`), a forged marker cannot be
distinguished from a real one.

What the template writes next to a user text, such as instructions about tools or `/nothink`, is left out.

Not recovered are white space around a user text, and the border between system prompt and first user text in templates that
join them (Mistral, Llama 2, Gemma): there the system prompt counts as part of the first user text.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import InvalidRequest
from lpc.model.conversation import NO_TEXT, UserTurns, from_prompt
from predictor_service.errors import ForeignTokenIds, UnreadTemplate
from predictor_service.requests.chat_template import MAX_TOOL_BYTES, UserMarkup
from predictor_service.requests.marked_text import MarkingTokenizer, unmarked

NO_TEMPLATE: Final = (
    "its tokenizer has no usable Jinja chat template, so prompts of chats are not read: put a chat_template.jinja into the "
    "model's folder, or name a folder with one in LPC_SERVED_MODELS"
)
_CHAT_MARKER: Final = re.compile("user|assistant|human|header|role|turn|im_start|inst]", re.IGNORECASE)
"""Added tokens that a chat's prompt has and a completion's has not."""
MARKUP_TOKENS: Final = 24
"""Tokens after an added token in which the name of a role is searched."""
REACH: Final = MARKUP_TOKENS + MAX_TOOL_BYTES
"""Tokens (characters in plain-text markup) after and before an opening in which the mark of a tool's answer is searched."""
MAX_CHARACTERS: Final = 16 * 2**20
"""Largest text of one prompt's token ids, in characters: as much as fits into the largest message."""
MAX_OPENINGS: Final = 8192
"""Largest number of user messages in one prompt."""


class ServedModel:
    """Tokenizer and chat template of a model that an engine serves. Thread-safe.

    Attributes:
        markup: how its chat template marks user messages; None: it has no usable template.

    Args:
        lengths: number of characters of each id (`token_lengths`).
    """

    def __init__(self, name: str, backend: Tokenizer, markup: UserMarkup | None, lengths: NDArray[np.int32]) -> None:
        self.name = name
        self.markup = markup
        self._tokenizer = MarkingTokenizer(backend)
        self._lengths = lengths
        added = backend.get_added_tokens_decoder() if markup is None else {}
        self._chat_markers = [i for i, token in added.items() if _CHAT_MARKER.search(token.content)]

    @property
    def unread(self) -> str:
        """What of its prompts cannot be read, and the remedy; empty: nothing."""
        return NO_TEMPLATE if self._chat_markers else ""

    @property
    def vocabulary(self) -> int:
        """All ids are below it."""
        return self._tokenizer.vocabulary

    def characters(self, ids: NDArray[np.integer[Any]]) -> int:
        """Return the largest number of characters that token ids stand for; ids outside the vocabulary count as its last."""
        # A decoder puts at most one blank between two tokens.
        return int(self._lengths[np.minimum(ids, len(self._lengths) - 1)].sum(dtype=np.int64)) + len(ids)

    def user_turns(self, ids: Sequence[int] | NDArray[np.uint32], window: int) -> UserTurns:
        """Return the last ``window`` user turns of a prompt, and the number of all.

        A prompt without chat markup (of a completions API) counts as one user turn.

        Raises:
            ForeignTokenIds: an id is outside the vocabulary.
            UnreadTemplate: the prompt is a chat's, and no template is usable.
            InvalidRequest: the prompt has too much text.
        """
        array = np.asarray(ids, np.int64)
        outside = np.flatnonzero((array < 0) | (array >= self._tokenizer.vocabulary))
        if outside.size:
            position = int(outside[0])
            raise ForeignTokenIds(
                f"token id {int(array[position])} at position {position} is outside the vocabulary of {self.name} "
                f"({self._tokenizer.vocabulary} tokens): is served_model the model that the prompt was tokenised for?"
            )
        if (characters := self.characters(array)) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"the token ids stand for up to {characters} characters, at most {MAX_CHARACTERS} are accepted"
            )
        markup = self.markup
        turns = None
        if markup is not None:
            turns = self._by_ids(array, markup, window) if markup.pieces else self._by_text(array, markup, window)
        elif self._chat_markers and np.isin(array, self._chat_markers).any():
            raise UnreadTemplate(f"{self.name}: {NO_TEMPLATE}")
        if turns is None:
            return from_prompt(self._tokenizer.decode(array))
        return turns if turns.prompts else replace(turns, prompts=NO_TEXT, told_apart=False)

    def _by_ids(self, ids: NDArray[np.int64], markup: UserMarkup, window: int) -> UserTurns | None:
        """Find user messages by added tokens, and decode only the last ones. Return None if there are none."""
        marks = np.flatnonzero(self._tokenizer.is_marker[ids])
        marker_ids = ids[marks]
        first, *rest = markup.pieces
        spans: list[tuple[int, int]] = []
        tool_end: int | None = None
        openings = np.flatnonzero(marker_ids == first.marker)
        _check_openings(len(openings))
        closings = np.flatnonzero(marker_ids == markup.end)
        for k in openings:
            last = k + len(rest)
            if last >= len(marks) or any(marker_ids[k + 1 + i] != piece.marker for i, piece in enumerate(rest)):
                continue
            between = zip(markup.pieces[:-1], range(k, last), strict=True)
            if any(marks[i + 1] - marks[i] > MARKUP_TOKENS or self._after(ids, marks, i) != p.text for p, i in between):
                continue
            start = int(marks[last]) + 1
            closing = np.searchsorted(closings, last + 1)
            end = int(marks[closings[closing]]) if closing < len(closings) else len(ids)
            text = self._tokenizer.marked(ids[start : min(end, start + REACH)]).lstrip()
            if not text.startswith(markup.pieces[-1].text):
                continue
            opened = int(marks[k])
            if spans and spans[-1][1] > opened:  # nothing has closed the message before
                spans[-1] = (spans[-1][0], opened)
            follows_tool = tool_end is not None and opened - REACH <= tool_end
            since = tool_end if follows_tool else max(opened - REACH, 0)
            before = self._tokenizer.marked(ids[since:opened]) if markup.tool_before else ""
            if markup.is_tool(before, text[len(markup.pieces[-1].text) :], follows_tool=follows_tool):
                tool_end = end + 1
                continue
            spans.append((start, end))
        if not spans:
            return None
        texts = [""] * len(spans)
        role = len(markup.pieces[-1].text)
        kept = i = 0
        for i in range(len(spans) - 1, -1, -1):
            start, end = spans[i]
            texts[i] = markup.own_text(self._tokenizer.decode(ids[start:end]).lstrip()[role:].strip())
            kept += bool(texts[i])
            if kept == window:
                # Older messages are only counted, blank ones included: only decoding could exclude them.
                break
        # The length of the rest is estimated from the decoded part: decoding all would cost more than the encoder's
        # tokenisation, and the model uses only the logarithm of the length.
        density = sum(map(len, texts)) / max(sum(end - start for start, end in spans[i:]), 1)
        history = round((spans[-1][0] - spans[0][0]) * density)
        last_reply = round((spans[-1][0] - spans[-2][1]) * density) if len(spans) > 1 else 0
        return UserTurns(tuple(filter(None, texts[i:])), i + max(kept, 1), history, last_reply)

    def _by_text(self, ids: NDArray[np.int64], markup: UserMarkup, window: int) -> UserTurns | None:
        """Find user messages in decoded text, for templates with plain-text markers. Return None if there are none."""
        text = self._tokenizer.marked(ids)
        _check_openings(text.count(markup.opening))
        prompts: list[str] = []
        found = False
        history = last_reply = begin = close = 0
        tool_end: int | None = None
        at = text.find(markup.opening)
        while at >= 0:
            start = at + len(markup.opening)
            end = text.find(markup.closing, start) if markup.closing else -1
            end = len(text) if end < 0 else end
            follows_tool = tool_end is not None and at - REACH <= tool_end
            before = text[tool_end if follows_tool else max(at - REACH, 0) : at]
            if markup.is_tool(before, text[start : min(end, start + REACH)], follows_tool=follows_tool):
                tool_end = end + len(markup.closing)
            else:
                if found:
                    history, last_reply = at - begin, at - close
                else:
                    begin = at
                found = True
                if prompt := markup.own_text(unmarked(text[start:end]).strip()):
                    prompts.append(prompt)
                close = end
            at = text.find(markup.opening, end)
        return UserTurns(tuple(prompts[-window:]), max(len(prompts), 1), history, last_reply) if found else None

    def _after(self, ids: NDArray[np.int64], marks: NDArray[np.int64], k: int) -> str:
        """Return the stripped text between added token ``k`` and the next."""
        return self._tokenizer.decode(ids[marks[k] + 1 : marks[k + 1]]).strip()


def _check_openings(count: int) -> None:
    if count > MAX_OPENINGS:
        raise InvalidRequest(f"the prompt has {count} openings of a message, at most {MAX_OPENINGS} are accepted")
