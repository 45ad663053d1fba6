"""Recognises the turns of a conversation, and labels predictions: a conversation continues when its next turn arrives.

Rule: a turn waits under a name that can be computed from the conversation's next request.

- With a ``conversation_id`` the name is the id, and any other turn with this id is the next one.
- Without one the name is the last IDENTITY_PROMPTS user prompts, or all if there are fewer. The next request contains the same
  prompts before its own. If several turns wait under one name (two users who both begin with "hi"), the request continues the
  one whose count fits, and of several such the one that has waited longest. So the number of continued turns is right, although
  not always the right turns are labelled.

A turn that is sent again (a retry, a regenerated answer) is not a continuation and does not get a second row. Without an id it
is recognised by its text if that has two prompts or CERTAIN_CHARS characters.

Every turn is labelled ``horizon_s`` after its arrival, even if the next one arrived earlier. Otherwise a restart would drop
only turns that have not continued, and in the first hour every labelled turn would have continued. For the same reason a full
memory does not label new turns; it does not drop the oldest ones, which are the least likely to continue. Unlabelled turns are
still stored, so that their next turn is recognised; of too many, the client with most of them loses its longest idle ones.

So that a client that sends much does not own the labels, and with them what the next model learns, it holds at most SHARE of
the turns to be labelled if other clients hold any. It also holds at most SHARE of what the others leave free, so that there is
always room for another client (dynamic thresholds, Choudhury and Hahne 1998). A client alone has the whole memory, until a turn
of another one finds it full.

Known errors: a turn counts as the last one if its next turn arrived after the horizon, or at another sidecar that does not
share its turns (`predictor_service.sharing`); if the caller edited the history or sends fewer than WINDOW prompts of a longer
one; or if the served model's chat template renders the last user message differently from earlier ones (Mistral's with a system
prompt). An id avoids the last two. Without an id, plain prompts and histories known to be cut that short are not labelled.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from lpc.model.conversation import UserTurns
from lpc.model.returns.facts import Facts
from lpc.model.returns.hazards import EDGES
from lpc.model.returns.memory import NO_PAST, Arrival, Past, by_user
from lpc.model.returns.users import UserPast, Users
from predictor_service.labels.names import CLIENT_BYTES, MAX_SAME_NAME, Identity, Names, identity_of, user_name
from predictor_service.labels.shares import SharedTurns
from predictor_service.labels.turn import Forecast, Label, Reason, Sent, Turn, TurnObserver

CHUNK: Final = 1000
"""Turns labelled while the lock is held once."""

EXPIRE_INTERVAL_S: Final = 1.0
"""Interval at which turns whose horizon has passed are labelled."""

SHARE: Final = 0.75
"""Largest part of the turns to be labelled, and of the memory that others leave free, that one of several clients may hold."""
LEAST_SHARE: Final = 1 / 32
"""Part of the memory that a client may hold in any case."""

LATE_S: Final = float(EDGES[-1])
"""Age until which the next turn of a turn with an id is recognised: the end of the last interval of a return curve."""


class TurnTracker:
    """Stores turns, and notifies its observers of their outcomes. Thread-safe.

    Invariants: stores at most ``capacity`` turns to be labelled until their horizon has passed, in order of arrival (the
    tokeniser's threads can reorder some); at most as many unlabelled turns without a next turn; and at most as many with an id
    whose horizon has passed. Under each name it stores the turns without a next turn, oldest first.
    Prompts and ids are stored as hashes only, with a key of this process.
    """

    def __init__(self, capacity: int, horizon_s: float, observers: Sequence[TurnObserver]) -> None:
        self.capacity = capacity
        self.horizon_s = horizon_s
        self._observers = observers
        self._key = os.urandom(32)
        self._users = Users(client_bytes=CLIENT_BYTES)
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque()
        self._unlabelled_turns = SharedTurns()
        self._late = SharedTurns()
        self._waiting: dict[bytes, list[Turn]] = {}
        self._held: dict[str, int] = {}
        """Number of turns to be labelled, by client."""
        self._refused: dict[str, float] = {}
        """Arrival of the latest turn that the full memory did not label, by client, until one is labelled again."""

    def __len__(self) -> int:
        return len(self._turns)

    def arrive(
        self,
        turns: UserTurns,
        identity: Identity | None,
        at: float,
        facts: Facts | None = None,
        opening: bytes = b"",
        client: str = "",
        user: str = "",
    ) -> Turn:
        """Record the arrival of a turn, which is the next turn of the previous one. Return it, or the same turn sent before.

        A turn without an identity is not stored.

        Args:
            turns: the last WINDOW prompts, or all if there are fewer.
            identity: from `identity_of`; None: the next turn could not be recognised.
            at: seconds since the Unix epoch.
            facts, opening: for the return model, without the history of the conversation.
            client: name of the client.
            user: opaque; empty: unknown. A client's users are its own: equal names of two clients are two users.
        """
        facts = Facts(turns.turn_count) if facts is None else facts
        arrival = Arrival(b"", at, facts, opening, user=user_name(client, user, self._key))
        if identity is None or not self.capacity:
            if self.capacity:
                self._unlabelled("unidentified", 1)
            with self._lock:
                arrival = by_user(arrival.after(NO_PAST), self._users)
            return Turn(arrival=arrival, sent=_sent(turns, None, client), labelled=False)
        names = identity.under(self._key)
        with self._lock:
            again = self._again(names, turns.turn_count)
            if again is not None:
                return again
            before = self._before(names, turns.turn_count)
            if before is not None:
                before.next_at = at
                self._stop_waiting(before)
                conversation, past, previous_id = before.arrival.conversation, before.arrival.past, before.shared_id
            else:  # not the name: other conversations may begin with the same prompts
                conversation = names.own if names.by_id else os.urandom(len(names.own))
                past, previous_id = NO_PAST, b""
            reason = self._why_unlabelled(client, at)
            turn = Turn(
                arrival=by_user(arrival._replace(conversation=conversation).after(past), self._users),
                sent=_sent(turns, names, client),
                previous_id=previous_id,
                labelled=reason is None,
            )
            self._waiting.setdefault(names.own, []).append(turn)
            forgotten: Turn | None = None
            if turn.labelled:
                self._turns.append(turn)
                self._held[client] = self._held.get(client, 0) + 1
            else:
                self._unlabelled_turns.add(turn)
                if len(self._unlabelled_turns) > self.capacity:
                    forgotten = self._unlabelled_turns.surplus()
                    self._stop_waiting(forgotten)
        # Observers are always called outside the lock, because they may take locks of their own.
        for observer in self._observers:
            if before is not None:
                observer.returned(before)
            if forgotten is not None:
                observer.forgotten(forgotten)
        if reason is not None:
            self._unlabelled(reason, 1)
        return turn

    def turn_of(self, prompt: str, conversation_id: str) -> int:
        """Return the number of a prompt's turn, from the stored turns with the same id; 1: there are none.

        Args:
            prompt: the turn's only known prompt.
            conversation_id: opaque; empty: none.
        """
        identity = identity_of(UserTurns((prompt,), 1, told_apart=False), conversation_id)
        if identity is None:
            return 1
        names = identity.under(self._key)
        with self._lock:
            waiting = self._waiting.get(names.own)
            if not waiting:
                return 1
            latest = waiting[-1].sent
            return latest.turn_count + (latest.text != names.text)

    def answered(self, turn: Turn, forecast: Forecast) -> None:
        """Set a turn's prediction; of several the last counts. A turn without a prediction is not labelled."""
        with self._lock:
            if not turn.labelled:
                return
            repeated, turn.forecast = turn.forecast is not None, forecast
        if repeated:
            self._unlabelled("repeated", 1)

    def continue_from(self, turn: Turn, conversation: bytes, past: Past) -> None:
        """Record that a turn continues a conversation that has been at another sidecar.

        Args:
            conversation: the conversation's name.
            past: the conversation up to the previous turn, in this sidecar's time.
        """
        with self._lock:
            turn.arrival = turn.arrival._replace(conversation=conversation).after(past)
            if turn.arrival.user:
                self._correct(turn, turn.arrival.user_past)

    def user_elsewhere(self, turn: Turn, past: UserPast) -> UserPast:
        """Take over what other sidecars know of a turn's user, if that is more; return the user with this turn.

        Args:
            past: the user before the turn, in this sidecar's time.
        """
        with self._lock:
            known = turn.arrival.user_past
            return self._correct(turn, past if past.turns > known.turns else known)

    def _correct(self, turn: Turn, before: UserPast) -> UserPast:
        """Set what was known of a turn's user before it; return the user with the turn. Requires `_lock`."""
        turn.arrival, past = turn.arrival.by(before)
        self._users.put(turn.arrival.user, past)
        return past

    def returned_elsewhere(self, turn: Turn, at: float) -> None:
        """Record that the next turn of a turn's conversation arrived at another sidecar."""
        with self._lock:
            if turn.next_at is not None:
                return
            turn.next_at = at
            self._stop_waiting(turn)
        for observer in self._observers:
            observer.returned(turn)

    def repeated_elsewhere(self, turn: Turn) -> None:
        """Record that another sidecar got the same turn before, and will label it."""
        with self._lock:
            labelled, turn.labelled = turn.labelled, False
            turn.arrival = turn.arrival._replace(conversation=b"")
            self._stop_waiting(turn)
        if labelled:
            self._unlabelled("repeated", 1)

    def expire(self, now: float) -> None:
        """Label the turns whose horizon has passed at ``now``, seconds since the Unix epoch.

        If an observer raises, it misses that label only. The first error is raised after all turns have been labelled.
        """
        failure: Exception | None = None
        while True:
            labels: list[Label] = []
            with self._lock:
                count = 0
                while self._turns and self._turns[0].arrival.asked_at + self.horizon_s <= now and count < CHUNK:
                    turn = self._turns.popleft()
                    count += 1
                    self._release(turn.sent.client)
                    self._make_late(turn)
                    if turn.forecast is not None:
                        labels.append(self._label(turn, turn.forecast))
                        turn.forecast = None
                while _is_due(self._unlabelled_turns, self.horizon_s, now):
                    self._make_late(next(iter(self._unlabelled_turns)))
                self._refused = {name: at for name, at in self._refused.items() if at + self.horizon_s > now}
                while _is_due(self._late, LATE_S, now):
                    self._stop_waiting(next(iter(self._late)))
            if not count:
                break
            for label in labels:
                for observer in self._observers:
                    try:
                        observer.labelled(label)
                    except Exception as error:
                        failure = failure or error
        if failure is not None:
            raise failure

    def _label(self, turn: Turn, forecast: Forecast) -> Label:
        gap = math.nan if turn.next_at is None else max(turn.next_at - turn.arrival.asked_at, 0.0)
        continues = gap <= self.horizon_s
        return Label(turn, forecast, continues, gap if continues else math.nan)

    def close(self) -> None:
        """Drop all turns; their predictions count as unlabelled."""
        with self._lock:
            known = sum(turn.forecast is not None for turn in self._turns)
            self._turns.clear()
            self._held.clear()
            self._refused.clear()
            self._unlabelled_turns.clear()
            self._late.clear()
            self._waiting.clear()
        self._unlabelled("shutdown", known)

    def _why_unlabelled(self, client: str, at: float) -> Reason | None:
        """Return why a client's new turn is not labelled; None: it is. Requires `_lock`."""
        if len(self._turns) >= self.capacity:
            self._refused[client] = at
            return "memory"
        held = self._held.get(client, 0)
        others = len(self._turns) - held
        if others or self._refused.keys() - {client}:
            part = SHARE / (1.0 - SHARE) * min(others, self.capacity - len(self._turns))
            if held >= max(LEAST_SHARE * self.capacity, part):
                return "share"
        self._refused.pop(client, None)
        return None

    def _release(self, client: str) -> None:
        held = self._held[client] - 1
        if held:
            self._held[client] = held
        else:
            del self._held[client]

    def _unlabelled(self, reason: Reason, count: int) -> None:
        for observer in self._observers:
            observer.unlabelled(reason, count)

    def _again(self, names: Names, turn_count: int) -> Turn | None:
        """Return the waiting turn that is the same as this one, if any."""
        if not names.certain:
            return None
        waiting = (turn for turn in islice(self._waiting.get(names.own, ()), MAX_SAME_NAME) if turn not in self._late)
        return next((turn for turn in waiting if turn.sent.text == names.text and turn.sent.turn_count == turn_count), None)

    def _before(self, names: Names, turn_count: int) -> Turn | None:
        """Return the waiting turn whose next turn this one is, if any."""
        waiting = self._waiting.get(names.before) if names.before is not None else None
        if not waiting:
            return None
        # A caller that sends only its last messages, without a count, always has the same count: return the oldest.
        return next((turn for turn in islice(waiting, MAX_SAME_NAME) if turn.sent.turn_count == turn_count - 1), waiting[0])

    def _make_late(self, turn: Turn) -> None:
        """Store a turn after its horizon only for the return model, and only if an id makes its next turn certain."""
        if turn.next_at is not None or not turn.sent.by_id:
            self._stop_waiting(turn)
            return
        self._unlabelled_turns.discard(turn)
        self._late.add(turn)
        if len(self._late) > self.capacity:
            self._stop_waiting(self._late.surplus())

    def _stop_waiting(self, turn: Turn) -> None:
        self._unlabelled_turns.discard(turn)
        self._late.discard(turn)
        waiting = self._waiting.get(turn.sent.name, [])
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(turn.sent.name, None)


def _sent(turns: UserTurns, names: Names | None, client: str) -> Sent:
    name, text, by_id = (b"", b"", False) if names is None else (names.own, names.text, names.by_id)
    return Sent(
        name, text, by_id, turns.turn_count, len(turns.prompts[-1]), turns.history_chars, turns.last_reply_chars, client
    )


def _is_due(turns: SharedTurns, wait_s: float, now: float) -> bool:
    """Return whether the first of these turns arrived ``wait_s`` seconds ago or earlier."""
    return bool(turns) and next(iter(turns)).arrival.asked_at + wait_s <= now
