"""Converts user turns to the model's input: token ids of the encoder and a few scalars.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.2): the encoder's token budget is split evenly over the prompts. A longer
prompt is cut to half of its share from its start and half from its end.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from lpc.model.conversation import UserTurns

CHARACTERS_PER_TOKEN: Final = (8, 32, 128)
"""Characters per token to tokenise at each end of a long prompt: the first value that yields enough tokens is used. Ordinary
text has two to five; white space and characters that normalisation drops need more."""

GUARD_TOKENS: Final = 16
"""Extra tokens at a cut that are discarded, because a cut through a word changes the tokens near it."""

SCALARS: Final[Mapping[str, Callable[[UserTurns], float]]] = {
    "turn_count": lambda turns: turns.turn_count,
    "prompt_chars": lambda turns: len(turns.prompts[-1]),
    "history_chars": lambda turns: turns.history_chars,
    "last_reply_chars": lambda turns: turns.last_reply_chars,
}
"""Scalar features by name, known when a turn arrives: non-negative counts and characters."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """Settings that turn a conversation into input of the model. Part of the artefact, because a head is trained for them.

    Raises:
        ValueError: unknown scalars, no window, or a token budget too small for the window.
    """

    prompt_window: int = 5
    token_budget: int = 512
    prefix: str = "query: "
    scalars: tuple[str, ...] = ("turn_count",)

    def __post_init__(self) -> None:
        unknown = [name for name in self.scalars if name not in SCALARS]
        if unknown:
            raise ValueError(f"unknown scalar features {unknown}; known are {sorted(SCALARS)}")
        if self.prompt_window < 1 or self.token_budget < 16 + 4 * self.prompt_window:
            raise ValueError("prompt_window must be at least 1 and token_budget at least 16 + 4 per prompt")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a manifest."""
        return asdict(self) | {"scalars": list(self.scalars)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FeatureSettings":
        """Return the settings in a manifest. Raises ValueError for invalid values."""
        return cls(
            prompt_window=int(values["prompt_window"]),
            token_budget=int(values["token_budget"]),
            prefix=str(values["prefix"]),
            scalars=tuple(str(name) for name in values["scalars"]),
        )


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Input of the model for one conversation.

    Attributes:
        input_ids: at most token_budget ids: ``<s> prefix prompt_1 </s> prompt_2 </s> ... </s>``.
        scalars: scalar features in the order of the settings.
    """

    input_ids: list[int]
    scalars: tuple[float, ...]


class FeatureEncoder:
    """Converts conversations to features. Thread-safe; the tokenizer releases the interpreter lock.

    Raises:
        ValueError: the tokenizer lacks `<s>` or `</s>` (or `[CLS]`, `[SEP]`), or the prefix leaves no tokens for prompts.
    """

    def __init__(self, tokenizer: Tokenizer, settings: FeatureSettings) -> None:
        self.settings = settings
        # "</s>" in user text must not become the end token. Encoding special tokens as text is not enough, because a Unigram
        # vocabulary also has them as pieces: their ids are dropped, except `<unk>`.
        tokenizer.encode_special_tokens = True
        self._reserved = frozenset(
            i
            for i, token in tokenizer.get_added_tokens_decoder().items()
            if token.special and "unk" not in token.content.lower()
        )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._start = _special(tokenizer, "<s>", "[CLS]")
        self._end = _special(tokenizer, "</s>", "[SEP]")
        self._prefix = self._tokenize(settings.prefix.rstrip())
        if self._share(settings.prompt_window) < 2:
            raise ValueError(
                f"the prefix has {len(self._prefix)} tokens, too many for a token_budget of {settings.token_budget}"
            )

    def encode(self, turns: UserTurns) -> ModelInput:
        """Return the features of one conversation."""
        prompts = turns.prompts[-self.settings.prompt_window :]
        share = self._share(len(prompts))
        input_ids = [self._start, *self._prefix]
        for prompt in prompts:
            input_ids += self._fit(prompt, share)
            input_ids.append(self._end)
        return ModelInput(input_ids, tuple(float(SCALARS[name](turns)) for name in self.settings.scalars))

    def _share(self, prompts: int) -> int:
        """Return the tokens per prompt: an equal part of the budget minus `<s>` and prefix, and minus one for `</s>`."""
        return (self.settings.token_budget - 1 - len(self._prefix)) // prompts - 1

    def _fit(self, prompt: str, share: int) -> list[int]:
        """Return at most ``share`` tokens: all of them, or half from the start (one more if odd) and half from the end.

        Only the ends of a long prompt are tokenised, so 5 MB cost no more than 64 KB. The result is exact if each end yields
        enough tokens. Text with more than 128 characters per token (kilobytes of blanks) yields fewer tokens; a character
        repeated over kilobytes may be grouped differently.
        """
        tail = share // 2
        head = share - tail
        for characters in CHARACTERS_PER_TOKEN:
            reach = characters * (head + GUARD_TOKENS)
            if len(prompt) <= 2 * reach:
                ids = self._tokenize(prompt)
                return ids if len(ids) <= share else ids[:head] + ids[len(ids) - tail :]
            first, last = self._tokenize(prompt[:reach]), self._tokenize(prompt[-reach:])
            if min(len(first), len(last)) >= head + GUARD_TOKENS:
                break
        return first[:head] + last[max(0, len(last) - tail) :]

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids if self._reserved.isdisjoint(ids) else [i for i in ids if i not in self._reserved]


def _special(tokenizer: Tokenizer, *names: str) -> int:
    for name in names:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    raise ValueError(f"the encoder's tokenizer has no {' or '.join(names)} token")
