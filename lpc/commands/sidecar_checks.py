"""What `lpc doctor` asks a sidecar: about the token ids of a prompt, as an engine sends it, and about its response caches."""

from collections.abc import Iterator
from typing import Final

import grpc

from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.cache.v1 import response_cache_pb2_grpc as cache_rpc
from lpc.commands.finding import Finding
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import Access

CHECK: Final = "token request"
TIMEOUT_S: Final = 10.0
IDS: Final = 32
MOST: Final = 8
"""Tokenizers that are tried."""


def token_requests(channel: grpc.Channel, access: Access, info: pb.GetModelInfoResponse, wanted: str) -> Iterator[Finding]:
    """Ask about a prompt through each tokenizer that the sidecar knows, or that of one served model.

    Args:
        info: what the sidecar says of itself.
        wanted: the served model; empty for all.
    """
    known = [one for one in info.tokenizers if not wanted or one.served_model == wanted][:MOST]
    for one in known or [pb.KnownTokenizer(served_model=wanted)]:
        yield _judged(_ask(channel, access, one), one, takes_offers=info.limits.max_tokenizer_bytes > 0)


def _ask(channel: grpc.Channel, access: Access, known: pb.KnownTokenizer) -> pb.Prediction | str:
    """Return what is answered to ids from the middle of the vocabulary, where ordinary text is; or an error's message."""
    step = max(known.vocabulary // (2 * IDS), 1)
    ids = [known.vocabulary // 4 + step * n for n in range(IDS)]
    tokens = pb.TokenIds(
        ids=[i for i in ids if i < known.vocabulary] or [1], served_model=known.served_model, tokenizer=known.digest
    )
    request = pb.PredictRequest(conversation=pb.Conversation(tokens=tokens), accept_unread=True)
    stub = rpc.ContinuationPredictorStub(channel)
    try:
        return stub.Predict(request, timeout=TIMEOUT_S, metadata=access.metadata).prediction
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


def _judged(answer: pb.Prediction | str, known: pb.KnownTokenizer, *, takes_offers: bool) -> Finding:
    name = known.served_model or "any model"
    if isinstance(answer, str):
        return Finding(CHECK, "fail", f"{name}: {answer}", "set LPC_SERVED_MODELS in the sidecar, or see its log")
    if not answer.unread:
        origin = f"offered by an engine, {known.digest[:12]}" if known.digest else "of LPC_SERVED_MODELS"
        found = f"{name}: token ids were read (tokenizer {origin}), probability {answer.probability:.3f}"
        return Finding(CHECK, "ok", found)
    answered = f"{name}: token ids were not read, and answered by lengths and times alone"
    if known.status.state == pb.TOKENIZER_STATE_FAILED:
        return Finding(
            CHECK, "fail", f"{answered}: {known.status.message}", "correct LPC_SERVED_MODELS, or the engine's tokenizer"
        )
    if known.status.state == pb.TOKENIZER_STATE_LOADING:
        return Finding(CHECK, "warn", f"{answered}: the tokenizer is being loaded", "wait some seconds")
    if takes_offers:
        advice = "start the engine with the plug-in, which offers its own and says in its log what came of it, or set "
        return Finding(CHECK, "warn", f"{answered}: no engine has offered a tokenizer yet", f"{advice}LPC_SERVED_MODELS")
    advice = "set LPC_SERVED_MODELS, or LPC_OFFERED_TOKENIZERS_MIB above 0, in the sidecar"
    return Finding(CHECK, "fail", f"{answered}: it is not configured, and the sidecar takes none from engines", advice)


def response_caches(channel: grpc.Channel, access: Access) -> Finding:
    """Ask a sidecar whether it has response caches, and whether it reaches their Redis."""
    check = "response caches"
    message = cache_pb.StatsRequest(scope="default", days=1)
    try:
        stats = cache_rpc.ResponseCacheStub(channel).Stats(message, timeout=TIMEOUT_S, metadata=access.metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Finding(check, "ok", "off in this sidecar (LPC_CACHE_REDIS_URL)")
        return Finding(check, "fail", f"the sidecar answers {error.code().name}", "see the sidecar's log")
    if not all(scope.known for scope in stats.scopes):
        advice = "see the sidecar's log, which names the kind of error; until it is fixed, requests go to the engines"
        return Finding(check, "fail", "on, and their Redis does not answer the sidecar", advice)
    entries = sum(scope.entries for scope in stats.scopes)
    return Finding(check, "ok", f"on, {entries:,} answers of this client in the scope default")
