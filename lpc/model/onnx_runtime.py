"""Imports ONNX Runtime with its telemetry off. All other modules take it from here.

From 1.29 on it sends events about sessions to Microsoft, also on Linux, and leaves a file in the folder for temporary files. It
reads the variable when it is imported: `disable_telemetry_events` comes too late.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]
