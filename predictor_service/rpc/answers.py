"""The answer to one conversation, from what the model said of it to the message on the wire."""

from dataclasses import dataclass

from lpc.model.artifact import Manifest
from lpc.v1 import predictor_pb2 as pb
from predictor_service.batching.prepare import Prepared
from predictor_service.batching.queue import Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller gets of one conversation, and where its time went (microseconds).

    ``reuse_group``: of its predicted return curve. ``manifest``: of the model. ``tokens``: that it was given.
    ``unread``: its token ids could not be read; then there is no probability, and ``reuse_group`` rests on lengths and times.
    """

    probability: float
    reuse_group: int
    manifest: Manifest
    turn_count: int
    tokens: int
    queue_us: int
    tokenize_us: int
    infer_us: int
    unread: bool = False


def answer_of(prepared: Prepared, outcome: Outcome) -> Answer:
    """Return the answer to a conversation of which the model said ``outcome``."""
    return Answer(
        probability=outcome.inferred.probability,
        reuse_group=outcome.inferred.reuse_group,
        manifest=prepared.model.manifest,
        turn_count=prepared.turn.turn_count,
        tokens=len(prepared.features.input_ids),
        queue_us=outcome.queue_us,
        tokenize_us=prepared.microseconds,
        infer_us=outcome.infer_us,
    )


def unread_answer(turn_count: int, reuse_group: int, manifest: Manifest) -> Answer:
    """Return the answer to a conversation that could not be read."""
    return Answer(0.0, reuse_group, manifest, turn_count, 0, 0, 0, 0, unread=True)


def message_of(answer: Answer) -> pb.Prediction:
    """Return an answer as it goes over the wire."""
    return pb.Prediction(
        probability=answer.probability,
        model_version=answer.manifest.version,
        reuse_group=answer.reuse_group,
        turn_count=answer.turn_count,
        unread=answer.unread,
        timing=pb.Timing(queue_us=answer.queue_us, tokenize_us=answer.tokenize_us, infer_us=answer.infer_us),
    )
