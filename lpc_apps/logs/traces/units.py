"""Times in another unit than their format's, which no field shows: found by what engines and users cannot do.

A reply takes time, so a conversation's next turn cannot come at once; and few users let hours pass before each turn. A trace
with a thousandth of its pauses, or a thousand times, fails one of these on each log at hand by a factor of 2 to 30, and none
of these fails one by itself. Such a trace is read as it is, because times may be scaled on purpose, and the doubt is shown.
"""

from collections.abc import Sequence
from typing import Final

from lpc_apps.logs.traces.request import Trace, TracedRequest

LEAST: Final = 10
"""Turns that decide. With fewer nothing is doubted."""
LEAST_REPLY: Final = 32
"""Tokens of a reply from which on its time counts; shorter ones have mostly the time of the prompt."""
REPLY_TOKENS_S: Final = 3_000.0
"""Tokens per second of a reply, with the user's pause: at most 170 of nine in ten replies in the logs at hand."""
ANSWER_TOKENS_S: Final = 20_000.0
"""Tokens per second of half of the replies without a pause: at most 213 in the logs at hand."""
PROMPT_TOKENS_S: Final = 1e7
"""Prompt tokens per second of a whole log: 41 thousand in Mooncake's."""
USUAL_PAUSE_S: Final = 7_200.0
SHORT_PAUSE_S: Final = 1_200.0
"""Pauses that half, and one in ten, do not exceed: 123 and 39 s in the logs at hand."""
TOOL_PAUSE_S: Final = 0.1
"""Pause behind an answer's end that nine in ten do not exceed, and which is not 0: of delays in seconds in place of ms."""


def doubt_of(trace: Trace, unit: str) -> str:
    """Return why a trace's times seem to be in another unit, and what to do; empty: they do not.

    Args:
        unit: the unit of the format's times, in words.
    """
    found = _doubt(trace)
    return f"{found}, so times seem to be in another unit: {unit}. Convert them if they are not" if found else ""


def _doubt(trace: Trace) -> str:
    pauses: list[float] = []
    speeds: list[float] = []
    late: list[float] = []
    """Seconds from the end of each answer to the next turn."""
    latest: dict[str, TracedRequest] = {}
    for request in trace.requests:
        before = latest.get(request.conversation)
        if before is not None:
            pause = request.arrival - before.arrival
            pauses.append(pause)
            if before.output_tokens >= LEAST_REPLY:
                speeds.append(before.output_tokens / max(pause, 1e-9))
            if before.served_s:
                late.append(pause - before.served_s)
        latest[request.conversation] = request
    served = [r.output_tokens / r.served_s for r in trace.requests if r.served_s and r.output_tokens >= LEAST_REPLY]
    asked = sum(request.input_tokens for request in trace.requests) / trace.duration if trace.duration else 0.0
    if (speed := _share(speeds, 0.9)) > REPLY_TOKENS_S or asked > PROMPT_TOKENS_S:
        if speed > REPLY_TOKENS_S:
            return f"one in ten replies has over {speed:,.0f} tokens for each second until the next turn"
        return f"the log has {asked:,.0f} prompt tokens per second"
    if (pause := _share(pauses, 0.5)) > USUAL_PAUSE_S and _share(pauses, 0.1) > SHORT_PAUSE_S:
        return f"half of the turns come more than {pause / 3600:.0f} hours after the one before"
    if (end := _share(late, 0.5)) < 0:
        return f"half of the answers end {-end:,.0f} s and more after the next turn began"
    if (speed := _share(served, 0.5)) > ANSWER_TOKENS_S:
        return f"half of the answers have over {speed:,.0f} tokens for each second that they took"
    if 0 < _share(late, 0.9) < TOOL_PAUSE_S:
        return f"nine in ten turns come within {TOOL_PAUSE_S:g} s after the answer before"
    return ""


def _share(values: Sequence[float], share: float) -> float:
    """Return the value that a share of all do not exceed; 0 if they are too few."""
    return sorted(values)[int(share * len(values))] if len(values) >= LEAST else 0.0
