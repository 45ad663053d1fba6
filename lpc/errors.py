"""Which errors are the user's: shown as one line, without a traceback."""

import sys

USERS_ERRORS = (
    ("predictor_service.errors", "ServiceError"),
    ("predictor_service.server", "StartError"),
    ("predictor_service.think_time", "ThinkTimeError"),
    ("training.datasets.records", "DatasetError"),
    ("training.embedding", "EmbeddingError"),
    ("training.encoders.encoder", "EncoderError"),
    ("training.export", "ExportError"),
    ("training.head", "HeadError"),
    ("training.label_log", "LabelLogError"),
    ("training.traces.request", "TraceError"),
    ("simulator.run", "SimulationError"),
    ("benchmarks.setup", "BenchmarkError"),
    ("eviction_client.errors", "ClientError"),
    ("lpc.certificates", "CertificateError"),
    ("lpc.predict", "PredictError"),
)


def is_users(error: Exception) -> bool:
    """Say whether an error is one that a user causes and can mend. Modules that are not loaded cannot have raised it."""
    kinds = tuple(getattr(sys.modules[module], name) for module, name in USERS_ERRORS if module in sys.modules)
    return isinstance(error, kinds)
