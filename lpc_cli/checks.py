"""The checks of `lpc doctor`, from an engine to its sidecar and its Redis.

They read an engine's settings (`LPC_...`), so run them in an engine's environment. :func:`_guarded` turns the exception of a
check into a finding.
"""

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from eviction_client.errors import StoreError
from eviction_client.settings import ClientSettings
from eviction_client.stores.namespace import Namespace
from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.cache.v1 import response_cache_pb2_grpc as cache_rpc
from lpc.errors import LpcError
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import Access, access_of, proxy_advice
from lpc.wire.addresses import parted
from lpc.wire.certificates import CertificateError, read, verdict
from lpc.wire.variables import unknown_variables
from lpc_cli.engines import Finding, Status, examine_engines
from lpc_cli.report import figures_of, never_hit, of_engines, of_prometheus, sidecar_adds

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ContinuationPredictor"].full_name
TIMEOUT_S: Final = 5.0
ANSWER_S: Final = 10.0
"""Timeout of calls that use a tokenizer or Redis."""
IDS: Final = 32
"""Token ids in the test prompt."""
MOST: Final = 8
"""Largest number of tokenizers to test."""
EXPIRES_SOON_S: Final = 14 * 86_400.0
SLOW_REDIS_S: Final = 0.01
"""Within a data centre Redis answers in less than a millisecond."""
SKEW_WARN_S: Final = 1.0
SKEW_FAIL_S: Final = 10.0
"""Keys are times. A clock ahead by a tenth of a mean think time (100 s) makes an engine's blocks look fresher."""
ROUND_TRIPS: Final = 5
OFF: Final = Finding("response caches", "ok", "off in this sidecar (LPC_CACHE_REDIS_URL)")


WEEK_H: Final = 7 * 24.0
COUNTED: Final = ("lpc_ghost_blocks_total", "lpc_predictions_total")
"""Metrics that show what the sidecar adds."""
ADDS: Final = 0.0005
"""Share of hits below which the sidecar adds nothing."""


def examine(settings: ClientSettings, engine: str | None = None, prometheus: str | None = None) -> list[Finding]:
    """Run all checks that apply to the settings. Never raises.

    Args:
        engine: URL of a running engine whose hits are checked; None: none.
        prometheus: address of a Prometheus that scrapes the engines.
    """
    findings = _guarded("settings", lambda: _variables(os.environ))
    findings += _guarded("engines", examine_engines)
    findings += _guarded("address", lambda: _address(settings))
    reachable = all(finding.status != "fail" for finding in findings)
    findings += _guarded("certificate", lambda: _certificate(settings, reachable))
    if reachable and all(finding.status != "fail" for finding in findings):
        findings += _guarded("sidecar", lambda: _sidecar(settings))
    findings += _guarded("hash seed", lambda: _hash_seed(settings, os.environ.get("PYTHONHASHSEED")))
    findings += _guarded("redis", lambda: _redis(settings))
    if engine is not None:
        findings += _guarded("hits", lambda: _hits(engine))
    return findings if prometheus is None else findings + _guarded("gain", lambda: gain(prometheus))


def _guarded(check: str, run: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Return the findings of a check. An exception becomes one with its type only, as its message may hold secrets."""
    findings: list[Finding] = []
    try:
        findings.extend(run())
    except CertificateError as error:
        findings.append(Finding(check, "fail", str(error), "correct the file or the setting"))
    except Exception as error:
        findings.append(Finding(check, "fail", f"the check itself failed: {type(error).__name__}", "report this as a bug"))
    return findings


def _variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    for unknown in unknown_variables(environment):
        what, _, advice = unknown.partition(": ")
        yield Finding("settings", "warn", what, advice)


def _hits(engine: str) -> Iterator[Finding]:
    """Check whether a running engine's prompts repeat earlier ones without a hit, although nothing was evicted."""
    try:
        figures = figures_of(of_engines([engine]).sums)
    except LpcError as error:
        yield Finding("hits", "fail", str(error), "name an engine with the plug-in: http://host:port")
        return
    for lost in never_hit(figures):
        yield Finding("hits", "warn", f"{lost.share:.0%} of the prompt tokens {lost.found}", lost.advice)
    cached = figures["by_source"]["cached"]["share"]
    needed = figures["tokens_for_a_hit"]
    unit = "" if needed is None else f"; a hit needs {needed:,} tokens in common with an earlier prompt"
    yield Finding("hits", "ok", f"{cached:.1%} of {figures['prompt_tokens']:,} prompt tokens were cached{unit}")


def _target(address: str) -> tuple[str, int] | str:
    """Return host and port, or the path of a Unix socket. Raises ValueError."""
    for scheme in ("unix://", "unix:"):
        if address.startswith(scheme):
            return address.removeprefix(scheme)
    return parted(address.removeprefix("dns:").lstrip("/"))


def _connect(target: tuple[str, int] | str) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target, TIMEOUT_S)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(TIMEOUT_S)
        connection.connect(target)
    except OSError:
        connection.close()
        raise
    return connection


def _address(settings: ClientSettings) -> Iterator[Finding]:
    address, finding = settings.predictor_address, partial(Finding, "address")
    try:
        _connect(_target(address)).close()
    except ValueError:
        yield finding(
            "fail",
            f"{address} is neither host:port nor unix:///path",
            "correct LPC_PREDICTOR_ADDRESS or --address",
        )
    except PermissionError:
        yield finding("fail", f"this user may not open {address}", "run as the sidecar's user: the mode is 0600")
    except socket.gaierror:
        yield finding("fail", f"the host of {address} has no address", "correct the name, or check the DNS")
    except TimeoutError:
        yield finding("fail", f"{address}: did not answer in time", "start `lpc serve` there, or correct LPC_PREDICTOR_ADDRESS")
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        yield finding("fail", f"{address}: {reason}", "start `lpc serve` there, or correct LPC_PREDICTOR_ADDRESS")
    else:
        yield finding("ok", f"{address} accepts connections")


def _certificate(settings: ClientSettings, reachable: bool) -> Iterator[Finding]:
    files, address = settings.predictor_files, settings.predictor_address
    if files.ca is None or address.startswith("unix:"):
        return
    own = read(files)
    if own.expires_at is not None:
        yield _expiry("own certificate", str(files.certificate), own.expires_at)
    if not reachable:
        return
    context = ssl.create_default_context(cafile=str(files.ca))
    context.set_alpn_protocols(["h2"])
    if files.certificate is not None and files.key is not None:
        context.load_cert_chain(files.certificate, files.key)
    target = _target(address)
    assert isinstance(target, tuple)
    try:
        with _connect(target) as plain, context.wrap_socket(plain, server_hostname=target[0]) as tls:
            certificate: dict[str, Any] = dict(tls.getpeercert() or {})
            # A TLS 1.3 server rejects the client's certificate after the handshake: wait for a byte of HTTP/2.
            if not tls.recv(1):
                raise ssl.SSLError("closed")
    except ssl.SSLCertVerificationError as error:
        advice = "renew or replace it on the sidecar, or correct LPC_PREDICTOR_CA"
        yield Finding("certificate", "fail", f"the sidecar's certificate {verdict(error.verify_code)}", advice)
    except (ssl.SSLError, OSError):
        yield Finding(
            "certificate",
            "fail",
            "the sidecar ends the TLS handshake",
            "if it requires client certificates, set LPC_CLIENT_CERTIFICATE and LPC_CLIENT_KEY, signed by its authority; "
            "if it does not use TLS, unset LPC_PREDICTOR_CA",
        )
    else:
        yield _expiry("certificate", "the sidecar's", float(ssl.cert_time_to_seconds(certificate["notAfter"])))


def _expiry(check: str, whose: str, expires_at: float) -> Finding:
    left = expires_at - time.time()
    found = f"{whose} is valid for {left / 86_400:.0f} more days"
    return Finding(check, "warn", found, "renew it") if left < EXPIRES_SOON_S else Finding(check, "ok", found)


def _sidecar(settings: ClientSettings) -> Iterator[Finding]:
    address = settings.predictor_address
    access: Access = access_of(settings)()
    with access.channel(address) as channel:
        try:
            status = _health(channel)
        except grpc.RpcError as error:
            caches = _response_caches(channel, access) if error.code() is grpc.StatusCode.NOT_FOUND else OFF
            if caches != OFF:
                yield Finding(
                    "health", "warn", "response caches without predictions", "engines need the address of `lpc serve`"
                )
                yield caches
                return
            yield Finding("health", "fail", f"no answer in gRPC: {error.code().name}", _health_advice(error.code(), settings))
            return
        if status == "SERVING":
            yield Finding("health", "ok", status)
        else:
            yield Finding("health", "fail", status, "it is starting or draining: wait, or see its log")
        try:
            info = rpc.ContinuationPredictorStub(channel).GetModelInfo(
                pb.GetModelInfoRequest(), timeout=TIMEOUT_S, metadata=access.metadata
            )
        except grpc.RpcError as error:
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            token = "set LPC_PREDICTOR_TOKEN_FILE to a file with one of the sidecar's tokens"
            advice = token if refused else "see the sidecar's log"
            yield Finding("token" if refused else "model", "fail", f"the sidecar answers {error.code().name}", advice)
            return
        yield Finding("model", "ok", f"{info.model_name} {info.model_version} ({info.precision}, {info.execution_provider})")
        limits = info.limits
        yield Finding(
            "limits",
            "ok",
            f"{limits.max_request_bytes} bytes, {limits.max_messages} messages, {limits.max_token_ids} token ids, "
            f"{limits.max_queue_items} waiting",
        )
        yield from _token_requests(channel, access, info, settings.served_model)
        yield _response_caches(channel, access)


def _health(channel: grpc.Channel) -> str:
    """Return the status of gRPC's health service.

    Its messages have one field each, a string and an enum, and so the same encoding as protobuf's own wrappers. Engines need
    not install the server's package with the stubs.
    """
    check: grpc.UnaryUnaryMultiCallable[StringValue, Int32Value] = channel.unary_unary(
        "/grpc.health.v1.Health/Check", StringValue.SerializeToString, Int32Value.FromString
    )
    answer = check(StringValue(value=SERVICE), timeout=TIMEOUT_S)
    return {1: "SERVING", 2: "NOT_SERVING"}.get(answer.value, "UNKNOWN")


def _health_advice(code: grpc.StatusCode, settings: ClientSettings) -> str:
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "this is another gRPC service: correct LPC_PREDICTOR_ADDRESS"
    if advice := proxy_advice(settings.predictor_address):
        return advice
    if settings.predictor_ca is None and not settings.predictor_address.startswith("unix:"):
        return "if it uses TLS, set LPC_PREDICTOR_CA; if this is not a sidecar, correct LPC_PREDICTOR_ADDRESS"
    return "if this is not a sidecar, correct LPC_PREDICTOR_ADDRESS; otherwise see its log"


def _token_requests(channel: grpc.Channel, access: Access, info: pb.GetModelInfoResponse, wanted: str) -> Iterator[Finding]:
    """Send a prompt for each of the sidecar's tokenizers, or for that of one served model.

    Without a tokenizer none is sent, because the sidecar would count and log it as an engine's.

    Args:
        info: the sidecar's description of itself.
        wanted: the served model; empty: all.
    """
    known = [one for one in info.tokenizers if not wanted or one.served_model == wanted][:MOST]
    takes_offers = info.limits.max_tokenizer_bytes > 0
    for one in known:
        yield judged(_ask_tokens(channel, access, one), one, takes_offers=takes_offers)
    if not known:
        yield judged(pb.Prediction(unread=True), pb.KnownTokenizer(served_model=wanted), takes_offers=takes_offers)


def _ask_tokens(channel: grpc.Channel, access: Access, known: pb.KnownTokenizer) -> pb.Prediction | str:
    """Return the answer to ids from the middle of the vocabulary, where ordinary text is, or an error's message."""
    step = max(known.vocabulary // (2 * IDS), 1)
    ids = [known.vocabulary // 4 + step * n for n in range(IDS)]
    tokens = pb.TokenIds(
        ids=[i for i in ids if i < known.vocabulary] or [1], served_model=known.served_model, tokenizer=known.digest
    )
    request = pb.PredictRequest(conversation=pb.Conversation(tokens=tokens), accept_unread=True)
    stub = rpc.ContinuationPredictorStub(channel)
    try:
        return stub.Predict(request, timeout=ANSWER_S, metadata=access.metadata).prediction
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


def judged(answer: pb.Prediction | str, known: pb.KnownTokenizer, *, takes_offers: bool) -> Finding:
    """Return the finding about a request of token ids: the sidecar's answer, or the status with which it refused."""
    name, finding = known.served_model or "any model", partial(Finding, "token request")
    if isinstance(answer, str):
        return finding("fail", f"{name}: {answer}", "set LPC_SERVED_MODELS in the sidecar, or see its log")
    if known.status.state == pb.TOKENIZER_STATE_READY and known.status.message:
        return finding("warn", f"{name}: {known.status.message}", "see docs/reference/vllm.md#models-without-a-jinja-template")
    if not answer.unread:
        origin = f"offered by an engine, {known.digest[:12]}" if known.digest else "of LPC_SERVED_MODELS"
        return finding("ok", f"{name}: token ids were read (tokenizer {origin}), probability {answer.probability:.3f}")
    answered = f"{name}: token ids are not read; answers use lengths and times alone"
    if known.status.state == pb.TOKENIZER_STATE_FAILED:
        advice = "correct LPC_SERVED_MODELS, or the engine's tokenizer"
        return finding("fail", f"{answered}: {known.status.message}", advice)
    if known.status.state == pb.TOKENIZER_STATE_LOADING:
        return finding("warn", f"{answered}: the tokenizer is being loaded", "wait some seconds")
    if takes_offers:
        advice = "start the engine with the plug-in, which offers its own and logs the outcome, or set LPC_SERVED_MODELS"
        return finding("warn", f"{answered}: no engine has offered a tokenizer yet", advice)
    why = "none is configured, and the sidecar does not accept tokenizers from engines"
    return finding("fail", f"{answered}: {why}", "set LPC_SERVED_MODELS, or LPC_OFFERED_TOKENIZERS=true, in the sidecar")


def _response_caches(channel: grpc.Channel, access: Access) -> Finding:
    """Check whether the sidecar has response caches and reaches their Redis."""
    check = OFF.check
    message = cache_pb.StatsRequest(scope="default")
    try:
        stats = cache_rpc.ResponseCacheStub(channel).Stats(message, timeout=ANSWER_S, metadata=access.metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return OFF
        return Finding(check, "fail", f"the sidecar answers {error.code().name}", "see the sidecar's log")
    if not all(scope.known for scope in stats.scopes):
        advice = "see the sidecar's log for the error; until it is fixed, requests go to the engines"
        return Finding(check, "fail", "on, but their Redis does not answer the sidecar", advice)
    entries = sum(scope.entries for scope in stats.scopes)
    return Finding(check, "ok", f"on, {entries:,} answers of this client in the scope default")


def gain(prometheus: str) -> Iterator[Finding]:
    """Check what the sidecar has added to the engines' hits in a week."""
    try:
        counted, earlier = (of_prometheus(prometheus, hours, COUNTED) for hours in (WEEK_H, 2 * WEEK_H))
    except LpcError as error:
        yield Finding("gain", "fail", str(error), "give --prometheus the address of one that scrapes the engines")
        return
    asked = ("lpc_ghost_blocks_total", "asked")
    adds = sidecar_adds(counted.sums)
    if adds is None:
        yield Finding("gain", "warn", "no engine has counted answers of a sidecar in a week", "see lpc_predictions_total")
    elif adds >= ADDS or earlier.sums[asked] <= counted.sums[asked]:
        yield Finding("gain", "ok", f"the sidecar adds {adds:+.2%} of hits, in a week or since the first count", "")
    else:
        yield Finding(
            "gain",
            "warn",
            f"the sidecar adds {adds:+.2%} of hits in a week: nothing",
            "run the engines without it: the plug-in alone hits as much here",
        )


def _hash_seed(settings: ClientSettings, seed: str | None) -> Iterator[Finding]:
    if settings.redis_url is None:
        yield Finding("hash seed", "ok", "keys are not pooled, so processes need no common seed")
    elif seed is None:
        advice = "set PYTHONHASHSEED to the same number in all engines, unless vLLM's sha256 hashes have a fixed seed"
        yield Finding("hash seed", "warn", "PYTHONHASHSEED is not set", advice)
    elif not seed.isdecimal():
        advice = "set it to the same number in all engines; otherwise their block hashes differ and nothing is pooled"
        yield Finding("hash seed", "fail", "PYTHONHASHSEED is not a number", advice)
    else:
        yield Finding("hash seed", "ok", f"PYTHONHASHSEED is {seed}; it must be equal in all engines")


def _redis(settings: ClientSettings) -> Iterator[Finding]:
    if settings.redis_url is None:
        yield Finding("redis", "ok", "none: claims on blocks stay in this process (LPC_REDIS_URL)")
        return
    import redis

    from eviction_client.stores.redis import RedisStore
    from lpc.wire.redis_connection import ERRORS
    from lpc.wire.redis_health import explain

    if settings.speaks_tls_to_redis:
        # Read here, because redis-py's errors do not name the file.
        own = read(settings.redis_files)
        if own.expires_at is not None:
            yield _expiry("redis certificate", str(settings.redis_files.certificate), own.expires_at)
    try:
        connection = settings.redis_connection()
        with contextlib.closing(RedisStore(connection, Namespace("lpc-doctor", "0", 16, "lpc-doctor"))) as store:
            store.check()
            yield Finding("redis", "ok", f"{connection.where} permits what the store needs")
            samples = [_time(connection.client) for _ in range(ROUND_TRIPS)]
    except StoreError as error:
        what, _, remedy = str(error).partition(": ")
        yield Finding("redis", "fail", what, remedy)
        return
    except redis.exceptions.NoPermissionError:
        yield Finding("clock", "warn", "this user may not read Redis' time", "add +time to its ACL for this check")
        return
    except ERRORS as error:
        yield Finding("clock", "fail", explain(error, connection), "see docs/how-to/security.md")
        return
    trip, skew = min(samples)
    found = f"{trip * 1000:.2f} ms"
    slow = Finding("redis latency", "warn", found, "use a Redis in the same data centre")
    yield slow if trip > SLOW_REDIS_S else Finding("redis latency", "ok", found)
    yield _skew(skew)


def _skew(skew: float) -> Finding:
    status: Status = "fail" if abs(skew) > SKEW_FAIL_S else "warn" if abs(skew) > SKEW_WARN_S else "ok"
    found = f"this machine is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} Redis"
    advice = "synchronise the clocks of all engines (NTP); a wrong clock makes blocks look fresher or older"
    return Finding("clock", status, found, "" if status == "ok" else advice)


def _time(client: Any) -> tuple[float, float]:
    """Return the round trip and the offset of this machine's clock, seconds, assuming equal times both ways."""
    sent, start = time.time(), time.perf_counter()
    answer = client.time(target_nodes="random") if hasattr(client, "get_random_node") else client.time()
    trip = time.perf_counter() - start
    if isinstance(answer, dict):
        answer = next(iter(answer.values()))
    return trip, sent + trip / 2 - (answer[0] + answer[1] / 1e6)
