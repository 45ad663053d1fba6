"""Facts about a turn besides its text, and their encoding for the forecasters."""

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpc.model.returns.hazards import Floats

KNOTS: Final = 8
"""Hat functions per feature: piecewise linear in the logarithm, so that a small network need not learn thresholds."""
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "turn_count": (0.0, 5.0),
    "input_tokens": (7.0, 17.0),
    "growth_tokens": (5.0, 15.0),
    "last_gap": (2.0, 11.0),
    "mean_gap": (2.0, 11.0),
    "reply_tokens": (3.0, 11.0),
    "growth_before": (5.0, 15.0),
    "openings": (0.0, 12.0),
    "model_log_odds": (-6.0, 6.0),
    "user_conversations": (0.0, 8.0),
    "user_went_on": (0.0, 1.0),
    "user_turns": (1.0, 5.0),
    "user_gap": (2.0, 11.0),
    "user_since": (2.0, 17.0),
    "user_usual": (0.0, 1.0),
}
"""Lowest and highest knot of each feature, in log2(1 + value); for the log-odds in log-odds."""
_LOG_ODDS: Final = list(_RANGES).index("model_log_odds")
OF_TURN: Final = (_LOG_ODDS + 1) * (KNOTS + 1)
"""Inputs of the network from the turn: per feature its hat functions and a flag for unknown."""
WIDTH: Final = OF_TURN + (len(_RANGES) - _LOG_ODDS - 1) * KNOTS
"""All inputs. Those from the user follow, hat functions alone: without a user they are 0, and nothing differs."""
_LOWEST: Final[Floats] = np.array([low for low, _ in _RANGES.values()])
_HIGHEST: Final[Floats] = np.array([high for _, high in _RANGES.values()])
_STEP: Final[Floats] = (_HIGHEST - _LOWEST) / (KNOTS - 1)


class Facts(NamedTuple):
    """Facts about one turn. NaN: unknown.

    Attributes:
        turn_count: user turns of the conversation, including this one.
        input_tokens: tokens of the prompt including history.
        growth_tokens: difference to the previous prompt's tokens.
        last_gap, mean_gap: seconds between the arrivals of the last two turns, and the geometric mean of all gaps.
        reply_tokens: tokens of the reply between the last two prompts.
        growth_before: `growth_tokens` of the previous turn.
        openings: number of earlier conversations with the same beginning.
        model_log_odds: log-odds that the sidecar's text model predicts, without recalibration.
        user_conversations: number of earlier conversations of the user, falling with age.
        user_went_on: share of the user's conversations that had a second turn, and half of one more.
        user_turns, user_gap: mean turns of these, and the geometric mean of the seconds between their turns.
        user_since: seconds since the user's latest turn, in any conversation.
        user_usual: nearness of the time of day to that of the user's earlier turns, in [0, 1].
        category: category of the request; may be empty.
    """

    turn_count: float
    input_tokens: float = math.nan
    growth_tokens: float = math.nan
    last_gap: float = math.nan
    mean_gap: float = math.nan
    reply_tokens: float = math.nan
    growth_before: float = math.nan
    openings: float = math.nan
    model_log_odds: float = math.nan
    user_conversations: float = math.nan
    user_went_on: float = math.nan
    user_turns: float = math.nan
    user_gap: float = math.nan
    user_since: float = math.nan
    user_usual: float = math.nan
    category: str = ""


def inputs(facts: list[Facts]) -> NDArray[np.float32]:
    """Return the network's inputs, [n, WIDTH]."""
    values = np.array([fact[:-1] for fact in facts], np.float64).reshape(-1, len(_RANGES))
    scaled = np.log2(1.0 + np.maximum(values, 0.0))
    scaled[:, _LOG_ODDS] = values[:, _LOG_ODDS]
    unknown = np.isnan(values)
    place = (np.clip(np.where(unknown, _LOWEST, scaled), _LOWEST, _HIGHEST) - _LOWEST) / _STEP
    hats = np.maximum(0.0, 1.0 - np.abs(place[:, :, None] - np.arange(KNOTS)))
    hats[unknown] = 0.0
    of_turn = np.concatenate([hats, unknown[:, :, None]], axis=2)[:, : _LOG_ODDS + 1]
    parts = [part.reshape(len(facts), math.prod(part.shape[1:])) for part in (of_turn, hats[:, _LOG_ODDS + 1 :])]
    return np.concatenate(parts, axis=1).astype(np.float32)


Stratum = tuple[float | str, ...]


def strata(fact: Facts) -> list[Stratum]:
    """Return the strata of a turn, from the coarsest, which contains all turns, to the finest.

    Each one refines the previous one by: category, turn number, prompt length, last gap, last reply; in octaves or coarser.
    """
    turn = int(min(fact.turn_count, 8))
    length = _octave(fact.input_tokens / 512.0, 7) // 2
    gap = _octave(fact.last_gap, 10) // 2
    reply = _octave(fact.reply_tokens, 11) // 3
    parts: Stratum = (fact.category, min(turn, 3), turn, length, gap, reply)
    return [parts[:depth] for depth in range(len(parts) + 1)]


def _octave(value: float, highest: int) -> int:
    """Return floor(log2(value)) in [0, highest]; -2 if the value is unknown."""
    return -2 if math.isnan(value) else int(min(max(math.log2(max(value, 1.0)), 0.0), highest))
