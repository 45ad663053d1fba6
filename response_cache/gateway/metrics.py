"""Prometheus metrics of the gateway. Labels have few values and contain no text of conversations."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lpc.wire.metrics import registered

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
NATS = (1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0)
LOOKUP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 1.0)


class Metrics:
    """All metrics, one entry each, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter, gauge = partial(registered, Counter, registry), partial(registered, Gauge, registry)
        seconds = partial(registered, partial(Histogram, buckets=SECONDS), registry)
        lookup_seconds = partial(registered, partial(Histogram, buckets=LOOKUP_SECONDS), registry)
        self.requests = counter(
            "lpc_gateway_requests",
            "Requests by endpoint and status; `gone`: the client disconnected, `cut`: incomplete answer.",
            endpoint=(),
            status=(),
        )
        self.task_failures = counter(
            "lpc_gateway_task_failures",
            "Failed rounds of background tasks, and tasks that ended, each with a traceback in the log. `unawaited`: unhandled "
            "errors.",
            task=(),
        )
        self.first_byte_seconds = seconds(
            "lpc_gateway_first_byte_seconds",
            "Time from a request's arrival to the first byte of its answer, by result of the cache.",
            cache=(),
        )
        self.answers = counter(
            "lpc_gateway_answers",
            "Answers to requests with a look-up: exact, normalised, semantic, or miss.",
            client=(),
            scope=(),
            cache=(),
        )
        self.lookup_seconds = lookup_seconds(
            "lpc_gateway_lookup_seconds", "Time of a look-up, without waiting for an identical request."
        )
        self.misses = counter("lpc_gateway_misses", "Misses by the sidecar's reason.", reason=())
        self.stores = counter("lpc_gateway_stores", "Answers of engines by whether the cache stored them.", result=())
        self.engine_requests = counter(
            "lpc_gateway_engine_requests",
            "Requests to engines by status class; `unreachable`: no connection, `broken`: closed without an answer, `cut`: "
            "closed while the body was sent, `stale`: a kept connection that the engine had closed.",
            engine=(),
            status=(),
        )
        self.engine_up = gauge(
            "lpc_gateway_engine_up", "1 while an engine answers requests and probes of its /health.", engine=()
        )
        self.engine_kind = gauge(
            "lpc_gateway_engine_kind", "1: what an engine says that it is.", engine=(), kind=(), version=()
        )
        self.engine_in_flight = gauge("lpc_gateway_engine_in_flight", "Requests in progress in an engine.", engine=())
        self.engine_waiting = gauge(
            "lpc_gateway_engine_waiting_seconds",
            "Seconds of prefill that an engine was sent and that wait for their first tokens, as far as the router knows.",
            engine=(),
        )
        self.held = gauge("lpc_gateway_held", "Requests that the gateway holds for an engine.", engine=())
        self.held_seconds = seconds(
            "lpc_gateway_held_seconds",
            "Time for which the gateway held a request, those that were handed on at once included.",
        )
        self.routes = counter(
            "lpc_gateway_routes",
            "Requests by route: `home`, to the conversation's engine; `moved`, to another one; `new`, of a new conversation.",
            route=(),
        )
        self.conversations = gauge("lpc_gateway_conversations", "Conversations that the gateway remembers.")
        self.moves = counter(
            "lpc_gateway_moves",
            "Moves of conversations: `away` from the engine that they had, `on` to a third one, `back`.",
            move=(),
        )
        self.prompt_tokens = counter(
            "lpc_gateway_prompt_tokens",
            "Prompt tokens as answers report them: `cached`, `computed`; `unreported`: without a number of cached tokens.",
            engine=(),
            found=(),
        )
        self.routed_tokens = counter(
            "lpc_gateway_routed_tokens",
            "Estimated prompt tokens by where they are believed to be cached: `here`, in the chosen engine; `elsewhere`, in "
            "another one only, so that this one makes a copy; `nowhere`.",
            believed=(),
        )
        self.router = gauge("lpc_gateway_router", "1: the router that chooses engines.", router=())
        self.compared = counter(
            "lpc_gateway_compared_requests",
            "Requests, one in 8 or more, about which the other router was asked: it would have chosen the `same` engine or an "
            "`other` one.",
            choice=(),
        )
        self.compared_seconds = counter(
            "lpc_gateway_compared_seconds",
            "Seconds of prefill of these requests at the engine that each router chooses, as the gateway believes: `waiting` "
            "there, and `missing` of the request.",
            router=(),
            part=(),
        )
        self.peers = gauge(
            "lpc_gateway_peers", "Other gateways before these engines whose messages came through Redis in the last 15 s."
        )
        self.peer_messages = counter(
            "lpc_gateway_peer_messages",
            "Messages between gateways: `sent`; `received`; `dropped`, Redis did not take them; `late`, from another clock or "
            "repeated later; `invalid`, not from a gateway of these engines.",
            what=(),
        )
        self.repair_requests = counter(
            "lpc_gateway_repair_requests",
            "Requests that a repair rule matches, and `any` rule: `repaired`; `left` as they are to compare; as they are in a "
            "`dry_run`.",
            rule=(),
            group=(),
        )
        self.repair_tokens = counter(
            "lpc_gateway_repair_prompt_tokens",
            "Prompt tokens of these requests as answers report them: `cached`, `computed`; `unreported`: without a number of "
            "cached tokens.",
            group=(),
            found=(),
        )
        self.repair_failures = counter(
            "lpc_gateway_repair_failures", "Requests that were sent as they were because of an error in a repair rule."
        )
        self.checks = counter(
            "lpc_gateway_checks",
            "Hit checks by result. `equal`: the cached answer is the computed one; `tie`: another token, nearly as probable; "
            "`unsteady`: the engine does not agree with itself; `unconfirmed`: it differs, and this could not be repeated; "
            "`hit`: it differs, and so does a hit of what was just computed; `blocks`: only what was cached before differs; "
            "`tier`: the same, and the engine has loaded blocks from a tier; `adapter`: the same, and the model is an adapter.",
            engine=(),
            result=(),
        )
        self.checks_skipped = counter(
            "lpc_gateway_checks_skipped",
            "Requests that were drawn and not checked, by reason: `no_hit`, `busy`, `gave_way`, `evicted`, `endpoint`, "
            "`media`, `form`, `size`, `no_store`, `prompt`, `unreported`, `salt_ignored`, `refused`, `failed`, `unreadable`.",
            reason=(),
        )
        self.check_nats = registered(
            partial(Histogram, buckets=NATS),
            registry,
            "lpc_gateway_check_nats",
            "How far the log-probabilities of a cached and a computed answer differ, nats.",
        )
        self.check_tokens = counter(
            "lpc_gateway_check_prompt_tokens",
            "Prompt tokens of hit checks as answers report them: `cached`, `computed`; `unreported`.",
            engine=(),
            found=(),
        )
        self.check_seconds = counter("lpc_gateway_check_seconds", "Seconds that hit checks took.", engine=())
        self.in_flight = gauge("lpc_gateway_in_flight", "Requests in progress.")
        self.held_bytes = gauge("lpc_gateway_held_bytes", "Bytes of the bodies of requests in progress.")
        self.cache_up = gauge("lpc_gateway_cache_up", "1 while the sidecar answers look-ups; 0: the gateway is a plain proxy.")
