"""The exported graph: tokens and scalars in, probability and embedding out, in ONNX, built node by node from the weights.

The nodes are the fused ones of ONNX Runtime (`com.microsoft`: attention, bias and GELU, skip and layer normalisation), so
no optimiser has to find them in a traced graph, and PyTorch is not needed. `lpc_apps.training.reference` computes the same in
NumPy. A head is never quantised: it costs nothing and decides.

In int8 each token has a scale of its own. ONNX Runtime's `quantize_dynamic` has one for a whole batch, so an answer depends on
the other texts in it: probabilities by 0.004 on average. A scale for each token takes 4% more time and is closer to fp32.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from lpc_apps.training.encoders import Encoder
from lpc_apps.training.encoders.encoder import ROWS, WORDS
from lpc_apps.training.head_file import HeadFile

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "fp16", "int8")
DTYPES: Final = {"fp32": np.float32, "fp16": np.float16, "int8": np.float32}
"""Types of the encoder's constants other than int8 matrices."""
OPSET: Final = 17
IR_VERSION: Final = 8
MICROSOFT: Final = "com.microsoft"
WEIGHT_STEPS: Final = 63
"""Seven bits: on processors without VNNI the 8-bit product sums saturate, and the cost is 0.0005 of cosine."""
INPUT_STEPS: Final = 127
_TINY: Final = 1e-20
"""Smallest divisor of a scale, so that a row of zeros has one."""


class _Graph:
    """Nodes and constants, in order of addition."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def shared(self, name: str, value: Any) -> str:
        """Return the name of a constant that several nodes use."""
        if all(constant.name != name for constant in self.constants):
            self.constant(name, np.array(value))
        return name

    def add(self, kind: str, inputs: Sequence[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        """Add a node whose one output has the node's name; return the name."""
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, domain=domain or None, **attributes))
        return name


def write_onnx(encoder: Encoder, head: HeadFile, precision: Precision, path: Path) -> None:
    """Write the graph in one precision.

    Inputs: input_ids and attention_mask [batch, tokens] int64 (1, and 0 for padding), scalars [batch, n] fp32.
    Outputs: probability [batch] fp32, embedding [batch, width] fp32: the mean over unmasked tokens, of length 1.
    """
    graph = _Graph()
    hidden = _encoder(graph, encoder, precision)
    # Pooling, normalisation and head stay in fp32: sums over 512 tokens and a probability need the range.
    _pooling(graph, hidden)
    _head(graph, head)
    tokens: list[str | int] = ["batch", "tokens"]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "continuation",
            [
                helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens),
                helper.make_tensor_value_info("attention_mask", TensorProto.INT64, tokens),
                helper.make_tensor_value_info("scalars", TensorProto.FLOAT, ["batch", head.scalars]),
            ],
            [
                helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch"]),
                helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", head.width]),
            ],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=IR_VERSION,
        producer_name="learned-prefix-cache",
    )
    onnx.save(model, path)


def _rows_in_int8(graph: _Graph, inputs: str) -> tuple[str, str]:
    """Add the quantisation of [batch, tokens, n] fp32 with a scale for each token.

    Returns:
        the names of the steps, uint8 with zero at 128, and of the scales [batch, tokens, 1].
    """
    steps, scale = f"{inputs}.steps", f"{inputs}.scale"
    if all(node.name != steps for node in graph.nodes):  # query, key and value have the same input
        largest = graph.add("ReduceMax", [graph.add("Abs", [inputs], f"{inputs}.abs")], f"{inputs}.largest", axes=[-1])
        positive = graph.add("Max", [largest, graph.shared("tiny", np.float32(_TINY))], f"{inputs}.positive")
        graph.add("Mul", [positive, graph.shared("step", np.float32(1 / INPUT_STEPS))], scale)
        scaled = graph.add("Div", [inputs, scale], f"{inputs}.scaled")
        graph.add("QuantizeLinear", [scaled, graph.shared("unit", np.float32(1)), graph.shared("zero", np.uint8(128))], steps)
    return steps, scale


def _product_in_int8(graph: _Graph, inputs: str, name: str, matrix: NDArray[np.float32]) -> str:
    """Add the product of [batch, tokens, n] and a matrix [n, m], both in eight bits with a scale for each token and column."""
    steps, scale = _rows_in_int8(graph, inputs)
    scales = np.maximum(np.abs(matrix).max(axis=0), _TINY) / WEIGHT_STEPS
    product = graph.add(
        "MatMulIntegerToFloat",
        [
            steps,
            graph.constant(f"{name}.weight", np.rint(matrix / scales).astype(np.int8)),
            graph.shared("unit", np.float32(1)),
            graph.constant(f"{name}.weight.scale", scales.astype(np.float32)),
            graph.shared("zero", np.uint8(128)),
        ],
        f"{name}.product.unscaled",
        domain=MICROSOFT,
    )
    return graph.add("Mul", [product, scale], f"{name}.product")


def _words(graph: _Graph, encoder: Encoder, precision: Precision) -> str:
    """Add the word embeddings of `input_ids`, in eight bits with a scale for each word; return the name of the output."""
    table = encoder.weights[WORDS]
    if precision != "int8":
        return graph.add("Gather", [graph.constant(WORDS, table.astype(DTYPES[precision])), "input_ids"], "words")
    largest = np.maximum(table.max(axis=1, keepdims=True), -table.min(axis=1, keepdims=True))
    scale = np.maximum(largest / 127, np.finfo(np.float32).tiny)
    steps = np.empty(table.shape, np.int8)
    for first in range(0, len(table), ROWS):
        rows = slice(first, first + ROWS)
        steps[rows] = np.rint(table[rows] / scale[rows])
    found = graph.add("Gather", [graph.constant(WORDS, steps), "input_ids"], "words.steps")
    scales = graph.add("Gather", [graph.constant(f"{WORDS}.scale", scale), "input_ids"], "words.scale")
    return graph.add("Mul", [graph.add("Cast", [found], "words.float", to=TensorProto.FLOAT), scales], "words")


def _encoder(graph: _Graph, encoder: Encoder, precision: Precision) -> str:
    """Add the encoder; return the name of its last layer's output, [batch, tokens, width] fp32."""
    dtype = DTYPES[precision]

    def parameter(name: str) -> str:
        return graph.constant(name, encoder.weights[name].astype(dtype))

    def in_fp32(hidden: str) -> str:
        return hidden if precision != "fp16" else graph.add("Cast", [hidden], "hidden", to=TensorProto.FLOAT)

    def product(inputs: str, name: str) -> str:
        # Kept as [input features, output features], so that nothing is transposed at each run.
        matrix = encoder.weights[f"{name}.weight"].T.astype(dtype)
        if precision == "int8":
            return _product_in_int8(graph, inputs, name, matrix)
        return graph.add("MatMul", [inputs, graph.constant(f"{name}.weight", matrix)], f"{name}.product")

    def normalised(product: str, skipped: str, layer: str, bias: str) -> str:
        inputs = [product, skipped, parameter(f"{layer}.weight"), parameter(f"{layer}.bias"), parameter(bias)]
        return graph.add("SkipLayerNormalization", inputs, layer, domain=MICROSOFT, epsilon=encoder.epsilon)

    if not encoder.layers:
        return in_fp32(_words(graph, encoder, precision))
    mask = graph.add("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
    first, axis = (graph.constant(name, np.array([value])) for name, value in (("first", 0), ("axis", 0)))
    tokens = graph.add("Shape", ["input_ids"], "tokens", start=1, end=2)
    positions = graph.constant("positions", encoder.positions.astype(dtype))
    present = graph.add("Slice", [positions, first, tokens, axis], "positions.present")
    summed = graph.add("Add", [_words(graph, encoder, precision), present], "embeddings")
    norm = "embeddings.LayerNorm"
    hidden = graph.add(
        "LayerNormalization",
        [summed, parameter(f"{norm}.weight"), parameter(f"{norm}.bias")],
        norm,
        axis=-1,
        epsilon=encoder.epsilon,
    )
    for number in range(encoder.layers):
        layer = f"encoder.layer.{number}"
        projections = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        bias = np.concatenate([encoder.weights[f"{projection}.bias"] for projection in projections]).astype(dtype)
        attention = graph.add(
            "MultiHeadAttention",
            [
                *(product(hidden, projection) for projection in projections),
                graph.constant(f"{layer}.attention.self.bias", bias),
                mask,
            ],
            f"{layer}.attention.self",
            domain=MICROSOFT,
            num_heads=encoder.heads,
        )
        dense = f"{layer}.attention.output.dense"
        hidden = normalised(product(attention, dense), hidden, f"{layer}.attention.output.LayerNorm", f"{dense}.bias")
        dense = f"{layer}.intermediate.dense"
        wide = [product(hidden, dense), parameter(f"{dense}.bias")]
        wide_output = graph.add("BiasGelu", wide, f"{layer}.intermediate.gelu", domain=MICROSOFT)
        dense = f"{layer}.output.dense"
        hidden = normalised(product(wide_output, dense), hidden, f"{layer}.output.LayerNorm", f"{dense}.bias")
    return in_fp32(hidden)


def _pooling(graph: _Graph, hidden: str) -> None:
    """Add the mean over unmasked tokens, normalised to length 1: the output `embedding`."""
    mask = graph.add("Cast", ["attention_mask"], "mask.float", to=TensorProto.FLOAT)
    last = graph.constant("last", np.array([-1]))
    column = graph.add("Unsqueeze", [mask, last], "mask.column")
    tokens = graph.constant("tokens.axis", np.array([1]))
    total = graph.add("ReduceSum", [graph.add("Mul", [hidden, column], "masked"), tokens], "total", keepdims=0)
    # Mean and sum have the same direction, and only that remains after normalisation.
    length = graph.add("ReduceL2", [total], "length", axes=[-1], keepdims=1)
    least = graph.constant("least", np.array(1e-12, np.float32))
    graph.add("Div", [total, graph.add("Max", [length, least], "length.positive")], "embedding")


def _head(graph: _Graph, head: HeadFile) -> None:
    """Add the head: from `embedding` and `scalars` to the output `probability`."""

    def parameter(name: str) -> str:
        values = head.parameters[name]
        return graph.constant(f"head.{name}", values.T if values.ndim == 2 else values)

    def layer(inputs: str, name: str) -> str:
        product = graph.add("MatMul", [inputs, parameter(f"{name}.weight")], f"head.{name}.product")
        return graph.add("Add", [product, parameter(f"{name}.bias")], f"head.{name}")

    one = graph.constant("one", np.array(1, np.float32))
    logarithms = graph.add("Log", [graph.add("Add", ["scalars", one], "scalars.plus_one")], "scalars.log")
    centred = graph.add("Sub", [logarithms, parameter("scalar_mean")], "scalars.centred")
    standardised = graph.add("Div", [centred, parameter("scalar_scale")], "scalars.standardised")
    inputs = graph.add("Concat", ["embedding", standardised], "head.inputs", axis=1)
    hidden = graph.add("Relu", [layer(inputs, "hidden.0")], "head.hidden.1")
    hidden = graph.add("Relu", [layer(hidden, "hidden.2")], "head.hidden.3")
    log_odds = graph.add("Squeeze", [layer(hidden, "output"), graph.constant("head.axis", np.array([1]))], "head.log_odds")
    graph.add("Sigmoid", [log_odds], "probability")
