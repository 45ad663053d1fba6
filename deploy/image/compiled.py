"""Compiles what the sidecar, the gateway and the reader of tokenizers import, by importing it. Run while an image is built."""

import importlib
import sys

MODULES = (
    "lpc_apps.commands.cli",
    "lpc_apps.gateway.server",
    "predictor_service.requests.loading",
    "predictor_service.responses.opening",
    "predictor_service.server",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
)

sys.dont_write_bytecode = False
for module in MODULES:
    importlib.import_module(module)
