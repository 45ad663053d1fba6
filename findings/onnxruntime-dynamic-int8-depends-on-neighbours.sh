#!/usr/bin/env bash
# onnxruntime 1.31.1 with onnx 1.23.2, seen on 2026-11-29: after `quantize_dynamic` a row's result depends on the other rows of its
# batch. DynamicQuantizeLinear has one scale for the whole tensor of activations, so a row with large numbers makes the steps of
# all others coarse. It is so per batch and not per row also with per_channel=True, which is about the weights.
#
# An embedding server that batches whatever waits therefore gives one text different vectors at different times. Seen: a row
# alone, and with a row that is 50 times as large: cosine 0.978 (0.974 with per_channel). In float32 1.000.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/env/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

draw = np.random.default_rng(0)
weights = numpy_helper.from_array(draw.normal(size=(64, 32)).astype(np.float32), "weights")
graph = helper.make_graph(
    [helper.make_node("MatMul", ["rows", "weights"], ["out"])],
    "one layer",
    [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 64])],
    [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, 32])],
    [weights],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, "float.onnx")
row = draw.normal(size=(1, 64)).astype(np.float32)
pair = np.concatenate([row, 50 * draw.normal(size=(1, 64)).astype(np.float32)])


def cosine(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    alone, together = (session.run(None, {"rows": rows})[0][0] for rows in (row, pair))
    return float(alone @ together / np.linalg.norm(alone) / np.linalg.norm(together))


found = {"float32": cosine("float.onnx")}
for per_channel in (False, True):
    quantize_dynamic("float.onnx", "int8.onnx", per_channel=per_channel)
    found[f"int8, per_channel={per_channel}"] = cosine("int8.onnx")
for name, value in found.items():
    print(f"{name}: cosine of a row alone and with a large one {value:.4f}")
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
float32, *quantised = found.values()
assert float32 > 0.999999
assert all(value < 0.99 for value in quantised), "the behaviour has changed"
PY
