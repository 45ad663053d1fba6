"""XLM-RoBERTa's tokenizer from its pieces and scores."""

import io
from collections.abc import Sequence
from typing import Final

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2

SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def unigram_tokenizer(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """Return a Unigram tokenizer over (piece, log probability) in the order of their ids.

    The normaliser is sentencepiece's `nmt_nfkc`. Its character map is compiled into the sentencepiece library, and
    every model that the library trains carries it: so a throwaway model is trained on one line and its map taken.
    """
    unknown = next(i for i, (piece, _) in enumerate(pieces) if piece == "<unk>")
    tokenizer = Tokenizer(models.Unigram(list(pieces), unk_id=unknown))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(_nmt_nfkc()), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    present = {piece for piece, _ in pieces}
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL if token in present])
    return tokenizer


def _nmt_nfkc() -> bytes:
    sink = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g h i j k l m n o p"]),
        model_writer=sink,
        vocab_size=20,
        model_type="char",
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
        hard_vocab_limit=False,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(sink.getvalue())  # type: ignore[attr-defined]
    return bytes(model.normalizer_spec.precompiled_charsmap)
