"""From user turns to what the model takes: token ids of the encoder and a few scalars.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.2): the encoder's token budget is split evenly over the prompts
present; a prompt over its share keeps half of the share from its start and half from its end.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from predictor_service.conversation import UserTurns

CHARACTERS_PER_TOKEN: Final = 64
"""How many characters of each end of a long prompt are looked at per token kept. A piece of the e5 vocabulary has at most
16 characters, but runs of white space count as one and normalisation drops some characters: four times that is ample."""

SCALARS: Final = {"turn_count": lambda turns: float(turns.turn_count)}
"""Scalar features by name."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """How a conversation becomes input of the model; part of the artefact, since a head is trained for one setting."""

    prompt_window: int = 5
    token_budget: int = 512
    prefix: str = "query: "
    scalars: tuple[str, ...] = ("turn_count",)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a manifest."""
        return asdict(self) | {"scalars": list(self.scalars)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FeatureSettings":
        """Return the settings of a manifest. Raises ValueError for values that cannot be meant."""
        settings = cls(
            prompt_window=int(values["prompt_window"]),
            token_budget=int(values["token_budget"]),
            prefix=str(values["prefix"]),
            scalars=tuple(str(name) for name in values["scalars"]),
        )
        unknown = [name for name in settings.scalars if name not in SCALARS]
        if unknown:
            raise ValueError(f"unknown scalar features {unknown}; known are {sorted(SCALARS)}")
        if settings.prompt_window < 1 or settings.token_budget < 16 + 4 * settings.prompt_window:
            raise ValueError("prompt_window must be at least 1 and token_budget at least 16 + 4 per prompt")
        return settings


@dataclass(frozen=True, slots=True)
class Features:
    """Input of the model for one conversation.

    Attributes:
        input_ids: at most token_budget ids: ``<s> prefix prompt_1 </s> prompt_2 </s> ... </s>``.
        scalars: in the order of the settings.
    """

    input_ids: list[int]
    scalars: tuple[float, ...]


class FeatureEncoder:
    """Turns conversations into features. Thread-safe; the tokenizer works without the interpreter lock.

    Raises:
        ValueError: the tokenizer lacks `<s>` or `</s>` (or `[CLS]`, `[SEP]`).
    """

    def __init__(self, tokenizer: Tokenizer, settings: FeatureSettings) -> None:
        self.settings = settings
        # A user who types "</s>" does not mean the end of the text. Not parsing special tokens is not enough: a Unigram
        # vocabulary also has them as pieces, so their ids are dropped where text gave them (`<unk>` may come from text).
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

    def encode(self, turns: UserTurns) -> Features:
        """Return the features of one conversation."""
        settings = self.settings
        prompts = turns.prompts[-settings.prompt_window :]
        share = (settings.token_budget - 1 - len(self._prefix)) // len(prompts) - 1
        input_ids = [self._start, *self._prefix]
        for prompt in prompts:
            input_ids += self._fit(prompt, share)
            input_ids.append(self._end)
        return Features(input_ids, tuple(SCALARS[name](turns) for name in settings.scalars))

    def _fit(self, prompt: str, share: int) -> list[int]:
        """Return at most ``share`` tokens: all of them, or the first half (rounded up) and the last half."""
        head = share - share // 2
        tail = share // 2
        reach = share * CHARACTERS_PER_TOKEN
        if len(prompt) > 2 * reach:
            # Only the ends count, so only they are tokenised: a prompt of 5 MB costs what one of 64 KB does.
            first, last = self._tokenize(prompt[:reach]), self._tokenize(prompt[-reach:])
            return first[:head] + last[max(0, len(last) - tail) :]
        ids = self._tokenize(prompt)
        if len(ids) <= share:
            return ids
        return ids[:head] + ids[len(ids) - tail :]

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids if self._reserved.isdisjoint(ids) else [i for i in ids if i not in self._reserved]


def _special(tokenizer: Tokenizer, *names: str) -> int:
    for name in names:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return int(token)
    raise ValueError(f"the encoder's tokenizer has no {' or '.join(names)} token")
