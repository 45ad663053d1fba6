"""Compiles what the sidecar, the gateway and the reader of tokenizers import, by importing it. Run while an image is built."""

import importlib
import sys

MODULES = (
    "lpc_apps.commands.cli",
    "response_cache.gateway.server",
    "predictor_service.requests.loading",
    "response_cache.service.opening",
    "predictor_service.server",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
)

sys.dont_write_bytecode = False
for module in MODULES:
    importlib.import_module(module)
