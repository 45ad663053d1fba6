"""What a policy has learned, as values that outlive the process: counts of reuse by class, rates, and the guard's evidence.

A policy of a restarted engine that goes on from them hits more until it has learned again: 0.4 to 3.2 points in the ten minutes
after the restart on Mooncake (docs/benchmarks/simulator.md, a restart). Most of it comes from the latest uses of blocks, which
are known again only if the engine names equal blocks alike after a restart.

Neither tenants nor texts are saved: classes that differ only by the number of a tenant, of a reply's end or of a group of the
sidecar's become one. A saved state is a head, an entry per class, an entry per use with the names of its blocks, and entries of
blocks that several prompts have extended. All of it is checked before anything changes.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

from eviction_client.block_hash import BlockHash
from eviction_client.pace import PIECE
from eviction_client.policy.classes import MOST_CLASSES
from eviction_client.policy.guard import finite
from eviction_client.policy.policy import Policy
from eviction_client.policy.request import (
    GAP_CLASSES,
    LAST_TURN,
    LEVELS,
    MOST_ODDS,
    MOST_USES,
    NEW_GROUPS,
    TURN_GROUPS,
    Claim,
    Features,
    Use,
)
from eviction_client.policy.reuse_monitor import MOST_CLAIMS, Counts, nothing, together
from lpc.model.curve import INTERVALS

H = TypeVar("H", bound=Hashable)

_NAME: Final[Callable[[Any], bytes]] = bytes
_BLOCK: Final[Callable[[bytes], Any]] = BlockHash

VERSION: Final = 1
LEAST: Final = 0.05
"""Blocks at risk below which a class is not saved."""
DIGITS: Final = 4
"""Significant digits of a count."""
MOST_BLOCKS: Final = 400_000
"""Blocks whose latest use is saved: 17 MB with names of 32 bytes. The latest count."""
MOST_NAME: Final = 64
"""Longest name of a block, bytes."""
ALIKE: Final = 0.1
"""The guard's evidence is of a cache whose capacity differs by at most this share: other caches hit other blocks."""
BOUNDS: Final = (GAP_CLASSES, NEW_GROUPS, TURN_GROUPS, 1, 2, LEVELS, 1, 2 * MOST_ODDS + 2)
"""By feature: its values in a saved class are below this. Categories are not saved."""


def saving(policy: Policy[H], now: float, name: Callable[[H], bytes] = _NAME) -> Generator[None, None, list[Any]]:
    """Return the state of a policy as JSON values. In steps of about a millisecond at most. In the background.

    Args:
        now: seconds.
        name: returns the name of a block; all have as many bytes, at most MOST_NAME.
    """
    monitor, rates, ghosts = policy.monitor, policy.fits.rates, policy.ghosts
    counts = yield from monitor.counts(now)
    keys = policy.combined.keys
    found: dict[Features, tuple[Counts, Counts]] = {}
    for number, pair in counts.items():
        key = keys[number]
        key = key._replace(reply_end=0, tenant=min(key.tenant, 1), group=0, category=0)
        found[key] = together(found[key], pair) if key in found else pair
    yield
    classes: list[Any] = []
    for key, (reuses, at_risk) in found.items():
        if at_risk[0] >= LEAST:
            classes.append([list(key[: len(BOUNDS)]), _rounded(reuses), _rounded(at_risk)])
        yield
    latest = yield from monitor.latest_uses(MOST_BLOCKS)
    length = len(name(latest[0][1][0])) if latest else 0
    uses: list[Any] = []
    numbers: dict[int, int] = {}
    for use, blocks in latest:
        of_use = _values(use, numbers)
        for start in range(0, len(blocks), PIECE):
            uses.append([of_use, _text(map(name, blocks[start : start + PIECE]), length)])
            yield
    extensions = yield from monitor.extensions()
    extended: list[Any] = []
    for start in range(0, len(extensions), PIECE):
        part = [(of, times) for block, times in extensions[start : start + PIECE] if len(of := name(block)) == length]
        extended.append([[times for _, times in part], _text((of for of, _ in part), length)])
        yield
    head = {
        "version": VERSION,
        "classes": len(classes),
        "uses": len(uses),
        "extended": len(extended),
        "used": monitor.used,
        "name_bytes": length,
        "gaps": list(monitor.gaps),
        "rates": [rates.read_s, rates.read_tokens, rates.life_s],
        "block_tokens": policy.block_tokens,
        "capacity": policy.capacity,
        "every": ghosts.every,
        "guard": ghosts.guard.saved(),
    }
    return [head, *classes, *uses, *extended]


def restore(policy: Policy[H], state: Sequence[Any], now: float, age_s: float, block: Callable[[bytes], H] = _BLOCK) -> bool:
    """Let a new policy go on from a saved state; return whether the guard goes on as well.

    The guard starts again if the rules, the size of a block or the sampling are others, or the capacity differs by more than
    ALIKE. Blocks of another size are other blocks.

    Args:
        now: seconds, by the clock of the saved uses.
        age_s: time since it was saved, seconds, at least 0. The counts lose weight as if the engine had run.
        block: returns the block of a name.

    Raises:
        ValueError: it is damaged or of another version. Nothing has changed.
    """
    try:
        head = state[0]
        if head["version"] != VERSION:
            raise ValueError(f"version {head['version']!r:.20} instead of {VERSION}")
        sizes = [_whole(head[name], len(state)) for name in ("classes", "uses", "extended")]
        if 1 + sum(sizes) != len(state) or sizes[0] > MOST_CLASSES:
            raise ValueError("not as many entries as it names")
        ends = [1, 1 + sizes[0], 1 + sizes[0] + sizes[1], len(state)]
        classes, of_uses, of_extended = (state[start:end] for start, end in pairwise(ends))
        counts = [
            (_features(key), _positive(reuses, INTERVALS), _positive(at_risk, INTERVALS)) for key, reuses, at_risk in classes
        ]
        gaps, gaps_s = _positive(head["gaps"], 2)
        read_s, read_tokens, life_s = _positive(head["rates"], 3)
        length, used = _whole(head["name_bytes"], MOST_NAME), _whole(head["used"], 2**62)
        uses = [(_use(values, now, used), list(map(block, _blocks(text, length)))) for values, text in of_uses]
        extensions = [
            entry
            for times, text in of_extended
            for entry in zip(map(block, _blocks(text, length)), [_whole(each, 2**31) for each in times], strict=True)
        ]
        same_blocks = head["block_tokens"] == policy.block_tokens
        alike = (
            same_blocks
            and head["every"] == policy.ghosts.every
            and abs(head["capacity"] - policy.capacity) <= ALIKE * policy.capacity
        )
        guarded = alike and policy.ghosts.guard.restore(head["guard"])
    except (ArithmeticError, LookupError, TypeError) as error:
        raise ValueError(type(error).__name__) from error
    known: dict[int, tuple[Counts, Counts]] = {}
    for key, reuses, at_risk in counts:
        number = policy.combined.number(key, now)[0]
        known[number] = together(known.get(number, nothing()), (reuses, at_risk))
    policy.monitor.restore(known, (gaps, gaps_s), age_s)
    if same_blocks:
        policy.monitor.restore_uses([(use, blocks) for use, blocks in uses if use is not None], extensions, used)
    rates = policy.fits.rates
    rates.read_s, rates.read_tokens, rates.life_s = read_s, read_tokens, max(life_s, 1.0)
    policy.refit(now)
    return guarded


def _values(use: Use, numbers: dict[int, int]) -> list[Any]:
    """Return a use as JSON values. ``numbers``: new numbers of conversations, below those that this process gives."""

    def renumbered(conversation: int) -> int:
        return numbers.setdefault(conversation, -1 - len(numbers))

    claims = [[renumbered(claim.conversation), claim.log_odds, claim.at, claim.predicted] for claim in use.claims]
    only = None if use.only is None else renumbered(use.only)
    return [use.at, use.turn, use.uses, use.place, only, claims, use.prompt]


def _use(values: Sequence[Any], now: float, used: int) -> Use | None:
    """Return a saved use; None: it lies in the future, because a clock was set back. Raises TypeError and ValueError."""
    at, turn, uses, place, only, of_claims, prompt = values
    claims = []
    for conversation, log_odds, since, predicted in of_claims:
        _negative(conversation)
        finite([log_odds, since], 2)
        claims.append(Claim(conversation, log_odds, since, predicted is True))
    if not 0 < len(claims) <= MOST_CLAIMS or not finite([at], 1):
        raise ValueError("not so many claims")
    if only is not None:
        _negative(only)
    whole = _whole(turn, LAST_TURN), _whole(uses, MOST_USES), _whole(place, used)
    if max(at, *(claim.at for claim in claims)) > now:
        return None
    return Use(float(at), *whole, only, tuple(claims), _whole(prompt, 2**31))


def _text(names: Iterable[bytes], length: int) -> str:
    return b64encode(b"".join([name for name in names if len(name) == length])).decode()


def _blocks(text: str, length: int) -> Iterator[bytes]:
    """Iterate over the names of saved blocks. Raises TypeError and ValueError."""
    joined = b64decode(text, validate=True)
    if len(joined) > PIECE * length or (length and len(joined) % length):
        raise ValueError("names of blocks of another length")
    return (joined[start : start + length] for start in range(0, len(joined), length or 1))


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not a whole number of a possible size")
    return value


def _negative(value: Any) -> None:
    if type(value) is not int or value >= 0:
        raise ValueError("not the number of a saved conversation")


def _rounded(counts: Counts) -> Counts:
    return [float(f"{count:.{DIGITS}g}") for count in counts]


def _features(values: Sequence[Any]) -> Features:
    """Return saved features. Raises TypeError and ValueError."""
    if not all(type(value) is int and 0 <= value < bound for value, bound in zip(values, BOUNDS, strict=True)):
        raise ValueError("features that do not exist")
    return Features(*values)


def _positive(values: Sequence[Any], length: int) -> list[float]:
    """Return saved numbers. Raises TypeError, and ValueError: not ``length`` finite numbers of at least 0."""
    found = finite(values, length)
    if min(found) < 0.0:
        raise ValueError("a number below 0")
    return found
