"""Facts of users besides their current conversation: a bounded table of numbers under opaque names, without text."""

import math
from collections import OrderedDict
from typing import Final, NamedTuple

CAPACITY: Final = 50_000
"""Number of users: about 20 MiB. Of more, those that were away longest are forgotten."""
DAY_S: Final = 86_400.0
FORGOTTEN_S: Final = 14 * DAY_S
"""Absence after which nothing is known of a user any more."""
HALF_LIFE_S: Final = 7 * DAY_S
"""Time in which the counts of a user halve."""


class UserPast(NamedTuple):
    """Counts of a user, which fall with age.

    Attributes:
        latest: arrival of the latest turn, seconds; NaN before the first one.
        conversations, went_on: number of conversations, and of those with more than one turn.
        turns: number of turns.
        log_gap_sum: sum of ln(gap) over the gaps between turns of a conversation; there are ``turns - conversations``.
        cos_sum, sin_sum: sums over the turns of cosine and sine of the time of day, a full circle in UTC.
    """

    latest: float
    conversations: float
    went_on: float
    turns: float
    log_gap_sum: float
    cos_sum: float
    sin_sum: float

    def arrive(self, at: float, gap: float, *, second: bool) -> "UserPast":
        """Return the counts after a turn.

        Args:
            at: seconds, on the clock of ``latest``.
            gap: seconds since the conversation's previous turn; NaN: it is the first one.
            second: whether it is the conversation's second turn.
        """
        away = at - self.latest
        kept = 0.5 ** (away / HALF_LIFE_S) if away > 0.0 else 1.0
        first = math.isnan(gap)
        angle = _time_of_day(at)
        return UserPast(
            at if math.isnan(self.latest) else max(at, self.latest),
            kept * self.conversations + first,
            kept * self.went_on + second,
            kept * self.turns + 1.0,
            kept * self.log_gap_sum + (0.0 if first else math.log(max(gap, 1e-3))),
            kept * self.cos_sum + math.cos(angle),
            kept * self.sin_sum + math.sin(angle),
        )

    @property
    def gap_s(self) -> float:
        """Geometric mean of the gaps; NaN: there is none."""
        gaps = self.turns - self.conversations
        return math.exp(self.log_gap_sum / gaps) if gaps > 1e-6 else math.nan

    def usual(self, at: float) -> float:
        """Return how near a time of day (of ``at``, seconds) is to the user's turns; NaN: there are none.

        It is the mean of ``(1 + cos(difference)) / 2``: 1 at the same time of day, 0 half a day away, 0.5 if the user
        is active at all hours.
        """
        angle = _time_of_day(at)
        near = self.cos_sum * math.cos(angle) + self.sin_sum * math.sin(angle)
        return 0.5 + 0.5 * near / self.turns if self.turns > 1e-6 else math.nan


def _time_of_day(at: float) -> float:
    return math.tau * (at % DAY_S) / DAY_S


NO_USER: Final = UserPast(math.nan, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Users:
    """The users of a sidecar, or of a log. Not thread-safe.

    Args:
        capacity: most users. Above it, the client with most users loses the one that was away longest.
        client_bytes: length of the client's part at the beginning of a user's name; 0: all users are one client's.
    """

    def __init__(self, capacity: int = CAPACITY, client_bytes: int = 0) -> None:
        self._capacity = capacity
        self._client_bytes = client_bytes
        self._past: dict[bytes, UserPast] = {}
        self._of_client: dict[bytes, OrderedDict[bytes, None]] = {}
        """Users by client, those that were away longest first."""

    def __len__(self) -> int:
        return len(self._past)

    def get(self, user: bytes, at: float) -> UserPast:
        """Return what is known of a user at a time, seconds."""
        past = self._past.get(user, NO_USER)
        return NO_USER if at - past.latest > FORGOTTEN_S else past

    def put(self, user: bytes, past: UserPast) -> None:
        """Set what is known of a user. An empty name is ignored."""
        if not user:
            return
        self._past[user] = past
        users = self._of_client.setdefault(user[: self._client_bytes], OrderedDict())
        users[user] = None
        users.move_to_end(user)
        if len(self._past) > self._capacity:
            client, largest = max(self._of_client.items(), key=lambda one: len(one[1]))
            del self._past[largest.popitem(last=False)[0]]
            if not largest:
                del self._of_client[client]
