"""Compiles what the processes of the image import, by importing it: sidecar, response caches, gateway, reader of tokenizers.

Run while an image is built.
"""

import importlib
import sys

MODULES = (
    "lpc_cli.cli",
    "predictor_service.requests.loading",
    "predictor_service.server",
    "response_cache.gateway.server",
    "response_cache.service.running",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
)

sys.dont_write_bytecode = False
for module in MODULES:
    importlib.import_module(module)
