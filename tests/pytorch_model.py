"""The model in PyTorch, by `transformers`, the reference for exports."""

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from lpc_apps.training.encoders import Encoder
from lpc_apps.training.head import Head


def bert(encoder: Encoder) -> BertModel:
    """Return the encoder of `transformers`; only for models whose positions start at the first row."""
    assert encoder.first_position == 0
    words = encoder.weights["embeddings.word_embeddings.weight"]
    config = BertConfig(
        vocab_size=words.shape[0],
        hidden_size=words.shape[1],
        num_hidden_layers=encoder.layers,
        num_attention_heads=encoder.heads,
        intermediate_size=len(encoder.weights["encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(encoder.weights["embeddings.position_embeddings.weight"]),
        type_vocab_size=len(encoder.weights["embeddings.token_type_embeddings.weight"]),
        layer_norm_eps=encoder.epsilon,
        pad_token_id=1,
    )
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in encoder.weights.items()})
    return model.eval()


class ContinuationModel(nn.Module):
    """Encoder, mean pooling over unmasked tokens, L2 normalisation and head, like the graph of `lpc_apps.training.graph`."""

    def __init__(self, encoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, input_ids: Tensor, attention_mask: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        embedding = nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1.0), dim=-1)
        return torch.sigmoid(self.head(embedding, scalars)), embedding
