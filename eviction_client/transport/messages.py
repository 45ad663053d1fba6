"""Requests to and answers from the sidecar, converted to and from protobuf messages."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.wrappers_pb2 import BytesValue

from eviction_client.pace import in_pieces
from lpc.model.probability import logit
from lpc.v1 import predictor_pb2
from lpc.wire.names import as_name

MAX_TOKEN_IDS: Final = 2**20
"""Longer prompts (more than 4 MiB) are not sent."""
PACKED_AT_ONCE: Final = 2**14
"""Token ids packed between two pauses: 0.1 ms."""


@dataclass(frozen=True, slots=True)
class Question:
    """The conversation to predict.

    Attributes:
        token_ids: the rendered prompt.
        served_model: name under which the sidecar knows the tokenizer.
        turn_count: user turns so far, if the engine knows.
        user: digest of who asks; empty: unknown.
    """

    token_ids: Sequence[int]
    served_model: str = ""
    turn_count: int | None = None
    category: str = ""
    conversation_id: str = ""
    user: str = ""


class TooManyTokens(ValueError):
    """A prompt has more than `MAX_TOKEN_IDS`."""


@dataclass(frozen=True, slots=True)
class SidecarPrediction:
    """A prediction for a conversation.

    Attributes:
        probability: probability of another user turn, in (0, 1).
        model_version: version of the model that predicted.
        turn_count: user turns in the model's input.
        unread: the sidecar could not read the token ids: no probability, and the group follows from lengths and times alone.
        group: number of the reuse group, as in the client's `reuse_curves`; 0: unknown.
    """

    probability: float
    model_version: str
    turn_count: int
    unread: bool = False
    group: int = 0

    @property
    def log_odds(self) -> float | None:
        """Log-odds of the probability, which the sidecar has recalibrated; None: there is none."""
        return None if self.unread else logit(self.probability)


def encode(question: Question, tokenizer: str = "") -> predictor_pb2.PredictRequest:
    """Return the request as a message. ``tokenizer``: digest of an offered tokenizer. Raises for invalid fields.

    ``array`` packs the ids, and protobuf parses them as one field: 8,000 ids hold the GIL for 40 microseconds instead of 120.
    Packed ids have the encoding of bytes.
    """
    if len(question.token_ids) > MAX_TOKEN_IDS:
        raise TooManyTokens
    if len(question.token_ids) == 0:
        raise ValueError("no token ids")
    ids = array("I")
    for piece in in_pieces(question.token_ids, PACKED_AT_ONCE):
        ids += array("I", piece)
    if sys.byteorder == "big":
        ids.byteswap()
    raw = ids.tobytes()
    request = predictor_pb2.PredictRequest()
    conversation = request.conversation  # filled in place: protobuf copies a message that it takes as an argument
    conversation.tokens.MergeFromString(BytesValue(value=raw).SerializeToString())
    conversation.tokens.served_model = as_name(question.served_model)
    conversation.tokens.tokenizer = tokenizer
    if question.turn_count is not None:
        conversation.turn_count = question.turn_count
    conversation.category = as_name(question.category)
    conversation.conversation_id = question.conversation_id
    conversation.user = question.user
    return request


def decode(prediction: predictor_pb2.Prediction, group: int = 0) -> SidecarPrediction | None:
    """Return the prediction; None if its probability is invalid. ``group``: in the client's numbering."""
    if not 0.0 <= prediction.probability <= 1.0:
        return None
    return SidecarPrediction(
        *(prediction.probability, prediction.model_version, prediction.turn_count),
        unread=prediction.unread,
        group=group,
    )
