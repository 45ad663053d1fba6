"""What preemptions cost: vLLM preempts the request that started last, however much of it must be computed again."""

from typing import Any

from vllm.v1.request import Request, RequestStatus


class Preemptions:
    """Counts of one scheduler's preemptions. All methods belong to its thread and may raise.

    Args:
        scheduler: vLLM's.

    Attributes:
        requests: preemptions.
        held: tokens that the preempted requests had in the cache then.
        least: tokens of the request that had the least then, of all that ran: what another victim had lost at most.
        again: tokens of resumed requests that were computed again, because their blocks were no hits any more.
        pending: tokens of the requests that have not resumed, by request id.
        resetting: whether the operator resets the cache, for which vLLM preempts all running requests. These do not count.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.requests = self.held = self.least = self.again = 0
        self.pending: dict[str, int] = {}
        self.resetting = False

    def freed(self, request: Request) -> None:
        """Count a request that gives up its blocks and goes on, if it does so for a preemption: vLLM has not reset it then."""
        if self.resetting or request.status != RequestStatus.RUNNING or not request.num_computed_tokens:
            return
        held = request.num_computed_tokens
        others = (other.num_computed_tokens for other in self._scheduler.running if other.num_computed_tokens)
        self.requests += 1
        self.held += held
        self.least += min(held, min(others, default=held))
        self.pending[request.request_id] = held

    def ended(self, request: Request) -> None:
        """Forget a request that has ended."""
        self.pending.pop(request.request_id, None)

    def scheduled(self, scheduled: Any) -> None:
        """Count what the requests that resume in this step compute again."""
        cached = scheduled.scheduled_cached_reqs
        for name, hits in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                self._resumed(name, hits)
        for new in scheduled.scheduled_new_reqs:  # vLLM's second model runner has them there
            self._resumed(new.req_id, new.num_computed_tokens)

    def _resumed(self, name: str, hits: int) -> None:
        held = self.pending.pop(name, None)
        if held is not None:
            self.again += max(held - hits, 0)
