"""Variants of the model's input: the default and the paper's ablations. Only the default is ever served."""

from dataclasses import dataclass, replace
from typing import Final

from lpc.model.conversation import UserTurns
from lpc.model.features import FeatureEncoder, Features, FeatureSettings


class StartsOnly(FeatureEncoder):
    """A prompt over its share keeps its start, not half of the start and half of the end."""

    def _fit(self, prompt: str, share: int) -> list[int]:
        return self._tokenize(prompt[: share * 128])[:share]


class LastPromptHalf(FeatureEncoder):
    """The last prompt gets half of the budget, those before it share the other half evenly."""

    def encode(self, turns: UserTurns) -> Features:
        """Return the features of one conversation."""
        whole = self._share(1)
        *before, last = turns.prompts[-self.settings.prompt_window :]
        parts = [self._fit(prompt, whole // 2 // len(before) - 1) for prompt in before]
        parts.append(self._fit(last, whole - whole // 2 if before else whole))
        ids = [self._start, *self._prefix]
        for part in parts:
            ids += [*part, self._end]
        return Features(ids, super().encode(turns).scalars)


@dataclass(frozen=True)
class Variant:
    """What goes into the encoder.

    Attributes:
        user_turns: how many of the last.
        replies: whether the model's replies between them go in, too.
        encoder: how the token budget is split.
    """

    user_turns: int = 5
    replies: bool = False
    encoder: type[FeatureEncoder] = FeatureEncoder

    def settings(self, base: FeatureSettings) -> FeatureSettings:
        """Return the feature settings: the window counts texts."""
        return replace(base, prompt_window=2 * self.user_turns - 1 if self.replies else self.user_turns)


VARIANTS: Final = {
    "default": Variant(),
    "replies": Variant(replies=True),
    "window-10": Variant(user_turns=10),
    "last-half": Variant(encoder=LastPromptHalf),
    "starts": Variant(encoder=StartsOnly),
}
