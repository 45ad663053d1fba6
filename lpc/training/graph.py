"""The exported graph: tokens and scalars in, probability and embedding out, in ONNX.

The torch graph is exported once in fp32 and fused by ONNX Runtime's own transformer optimizer (attention, bias-GELU, skip
layer normalisation); the precisions are made from that. A head is never quantised: it costs nothing and decides.
"""

import logging
import warnings
from pathlib import Path
from typing import Final, Literal

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from torch import Tensor, nn

from lpc.training.encoders import Encoder
from lpc.training.head import Head

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "fp16", "int8")
OPSET: Final = 17


class ContinuationModel(nn.Module):
    """Encoder, mean pooling over unmasked tokens, L2 normalisation, head.

    Inputs: input_ids and attention_mask [batch, tokens] int64, scalars [batch, n] fp32.
    Outputs: probability [batch] fp32, embedding [batch, width] fp32.
    """

    def __init__(self, encoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, input_ids: Tensor, attention_mask: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
        """Return probability and embedding."""
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        embedding = nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0), dim=-1)
        return torch.sigmoid(self.head(embedding, scalars)), embedding


def write_onnx(encoder: Encoder, head: Head, precision: Precision, path: Path) -> None:
    """Write the graph in one precision. Leaves its intermediate files in the folder of ``path`` only on failure."""
    exported = path.with_name("exported.onnx")
    _export(ContinuationModel(encoder.model, head).eval(), len(head.scalar_mean), exported)
    config = encoder.model.config
    options = FusionOptions("bert")
    fused = optimizer.optimize_model(
        str(exported),
        model_type="bert",
        num_heads=config.num_attention_heads,  # type: ignore[union-attr]
        hidden_size=config.hidden_size,  # type: ignore[union-attr]
        optimization_options=options,
        opt_level=0,
    )
    exported.unlink()
    if precision == "fp32":
        fused.save_model_to_file(str(path))
        return
    if precision == "fp16":
        # Pooling, normalisation and head stay in fp32: sums over 512 tokens and a probability want the range.
        fused.convert_float_to_float16(keep_io_types=True, node_block_list=_after_encoder(fused.model))
        fused.save_model_to_file(str(path))
        return
    whole = path.with_name("fused.onnx")
    fused.save_model_to_file(str(whole))
    logging.disable(logging.WARNING)  # it advises a pre-processing that the fusion above has done
    quantize_dynamic(
        whole,
        path,
        per_channel=True,
        # Seven bits: on processors without VNNI the 8-bit product sums saturate, and the cost is 0.0005 of cosine.
        reduce_range=True,
        weight_type=QuantType.QInt8,
        # The quantizer takes a Gemm apart first and asks about the product by a name of its own.
        nodes_to_exclude=[f"{node}{part}" for node in _after_encoder(fused.model) for part in ("", "_MatMul")],
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    logging.disable(logging.NOTSET)
    whole.unlink()


def _export(model: nn.Module, scalars: int, path: Path) -> None:
    input_ids = torch.randint(5, 20, (2, 12))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 8:] = 0
    inputs = (input_ids, attention_mask, torch.ones(2, scalars))
    batch, tokens = {0: "batch"}, {0: "batch", 1: "tokens"}
    with warnings.catch_warnings():
        # The exporter warns that it is the old one (meant: see below), the tracer of shapes it takes as constants.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            inputs,
            str(path),
            input_names=["input_ids", "attention_mask", "scalars"],
            output_names=["probability", "embedding"],
            dynamic_axes={
                "input_ids": tokens,
                "attention_mask": tokens,
                "scalars": batch,
                "probability": batch,
                "embedding": batch,
            },
            opset_version=OPSET,
            # The tracing exporter: ONNX Runtime's fusions know its patterns.
            dynamo=False,
        )


def _after_encoder(model: onnx.ModelProto) -> list[str]:
    """Return the names of the nodes behind the encoder's last fused layer."""
    nodes = list(model.graph.node)
    last = max(i for i, node in enumerate(nodes) if node.op_type == "SkipLayerNormalization")
    produced = set(nodes[last].output)
    names = []
    for node in nodes:
        if produced.intersection(node.input):
            produced.update(node.output)
            names.append(node.name)
    return names
