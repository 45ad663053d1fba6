"""Tokenizers are read in a process of their own, which may take long, hang, or take too much memory, and is then ended.

What comes back is as much of the tokenizer's backend as decoding takes, with short tokens and a decoder of known cost, and how
its chat template marks user messages: the template is rendered in that process only, in the sandbox that transformers has for
it. A tokenizer is data: no code that comes with one is ever run (``trust_remote_code``). The process that reads an offered one
gets nothing of the sidecar's environment, does not ask a hub, and has bounds on memory, time, files and processes.

    python -m predictor_service.requests.loading SOURCE TARGET configured
    python -m predictor_service.requests.loading SOURCE TARGET offered
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import LpcError
from lpc.wire.tokenizer_files import MAX_BYTES
from predictor_service.requests.chat_template import Piece, Render, UserMarkup, learn_markup
from predictor_service.requests.decoders import check_decoder
from predictor_service.requests.marked_text import MarkingTokenizer, token_lengths

MEMORY_BYTES: Final = 2 * 2**30
"""Address space of the process that reads what an engine has offered, at most: a template can build texts of any
length. A vocabulary of 262,144 tokens took 560 MiB."""
MAX_TOKEN: Final = 1024
"""Characters of one token; the longest of the tokenizers in use have 256 (runs of blanks)."""
CPU_S: Final = 300
OPEN_FILES: Final = 256
NICENESS: Final = 10
"""Serving comes first."""

BACKEND, LENGTHS, MARKUP, REASON = "backend.json", "lengths.npy", "markup.json", "reason.txt"


class TokenizerError(LpcError):
    """A tokenizer cannot be read. The message says why."""


class Loaded(NamedTuple):
    """A tokenizer as it is served.

    Attributes:
        backend: decodes as the tokenizer does; it does not encode.
        markup: None where there is no chat template, or none of use.
        lengths: characters of each token, by id.
    """

    backend: Tokenizer
    markup: UserMarkup | None
    lengths: NDArray[np.int32]


@dataclass(frozen=True)
class LoadLimits:
    """Seconds that reading may take: of what an engine has offered; of what is configured, which may be fetched from a hub."""

    offered_s: float = 60.0
    configured_s: float = 600.0


class TokenizerLoader:
    """Reads tokenizers, each in a process of its own. Thread-safe; a call takes seconds, or as long as its limit.

    Args:
        limits: of time.
    """

    def __init__(self, limits: LoadLimits = LoadLimits()) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def load(self, source: str, *, offered: bool) -> Loaded:
        """Return the tokenizer in a folder, or of a hub. Raises TokenizerError.

        Args:
            offered: an engine has sent it.
        """
        if Path(source).is_absolute() and not Path(source).is_dir():
            raise TokenizerError("there is no such folder")
        with tempfile.TemporaryDirectory(prefix="lpc-tokenizer-") as target:
            self._read(source, Path(target), offered=offered)
            try:
                backend = Tokenizer.from_file(str(Path(target, BACKEND)))
                lengths = np.load(Path(target, LENGTHS), allow_pickle=False)
                return Loaded(backend, _markup_of(json.loads(Path(target, MARKUP).read_text())), lengths)
            except Exception as error:  # the tokenizers library raises bare Exception
                raise TokenizerError(_first_line(error)) from error

    def close(self) -> None:
        """End what runs, and begin nothing more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _read(self, source: str, target: Path, *, offered: bool) -> None:
        # Whatever lies in the working directory is not imported (-P).
        command = [sys.executable, "-P", "-m", __name__, source, str(target), "offered" if offered else "configured"]
        quiet = {
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        if offered:
            environment = quiet | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "LC_ALL": "C.UTF-8"}
            environment |= dict.fromkeys(("HOME", "TMPDIR"), str(target))
            # Where the interpreter finds its own libraries.
            environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        else:
            # A hub's token, its proxy and its cache are named there.
            environment = os.environ | quiet
        null = subprocess.DEVNULL
        with self._lock:
            if self._closed:
                raise TokenizerError("the sidecar is stopping")
            process = subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null)
            self._running.add(process)
        seconds = self._limits.offered_s if offered else self._limits.configured_s
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TokenizerError(f"reading it took more than {seconds:g} s") from None
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self._running.discard(process)
        if status:
            with suppress(OSError):
                raise TokenizerError(Path(target, REASON).read_text())
            most = f" than {MEMORY_BYTES // 2**20} MiB" if offered else ""
            raise TokenizerError(f"the process that read it ended: it may have taken more memory{most}")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _markup_of(values: dict[str, Any] | None) -> UserMarkup | None:
    if values is None:
        return None
    return UserMarkup(**{**values, "pieces": tuple(Piece(*piece) for piece in values["pieces"])})


# In the process.


def renderer(tokenizer: Any) -> Render:
    """Return what renders a conversation through a transformers tokenizer's chat template; None where that refuses it."""

    def render(messages: list[dict[str, Any]]) -> str | None:
        goes_on = messages[-1]["role"] != "assistant"
        try:
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=goes_on)
        except Exception:  # templates raise what they like
            return None
        return text

    return render


def decoder_of(backend: Tokenizer) -> str:
    """Return a tokenizer, as JSON, that decodes as another does, and takes half the time and memory. Raises ValueError.

    Of a model of 150,000 tokens it is 45 MB instead of 109, and it is parsed in 0.2 s instead of 0.4, in which the sidecar does
    nothing else: the tokenizers library holds the interpreter's lock.
    """
    content = json.loads(backend.to_str())
    check_decoder(content["decoder"])
    content |= dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    # How text becomes tokens is not decoding's business; which token an id is, any kind of model knows. A token with two ids,
    # which only a Unigram model can have, needs that model.
    if len(vocabulary) == backend.get_vocab_size(with_added_tokens=True):
        content["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}
    return json.dumps(content, ensure_ascii=False)


def _tokenizer(source: str, *, offered: bool) -> Any:
    """Return a fast tokenizer of transformers'. Raises what that raises, and ValueError where there is none."""
    # Where PyTorch is installed, transformers would load it, which takes longer than all the rest.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        found = AutoTokenizer.from_pretrained(source, use_fast=True, trust_remote_code=False, local_files_only=offered)
    except Exception:
        # A class that is not known, or code that is not run: the tokenizer itself is in tokenizer.json all the same.
        if not Path(source, "tokenizer.json").is_file():
            raise
        found = PreTrainedTokenizerFast.from_pretrained(source, local_files_only=True)
    if getattr(found, "backend_tokenizer", None) is None:
        raise ValueError("it is not a fast tokenizer (tokenizer.json)")
    return found


def _limit() -> None:
    """Bound what this process may take."""
    import resource

    for what, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        # Should the sidecar be killed, and not end this process.
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 2 * MAX_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def main(source: str, target: Path, *, offered: bool) -> int:
    """Read a tokenizer and write what is served of it; return the exit status."""
    os.nice(NICENESS)
    with suppress(OSError):
        # If memory gives out, this process goes and not the sidecar.
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        if offered:
            _limit()
        tokenizer = _tokenizer(source, offered=offered)
        backend = tokenizer.backend_tokenizer
        marking = MarkingTokenizer(backend)
        lengths = token_lengths(backend, marking.vocabulary)
        if lengths.max(initial=0) > MAX_TOKEN:
            raise ValueError(f"it has a token of {lengths.max()} characters, more than {MAX_TOKEN}")
        decoder = decoder_of(backend)
        markup = learn_markup(marking, renderer(tokenizer))
        (target / BACKEND).write_text(decoder)
        np.save(target / LENGTHS, lengths)
        (target / MARKUP).write_text(json.dumps(None if markup is None else asdict(markup)))
    except BaseException as error:  # a panic of the tokenizers library is not an Exception
        (target / REASON).write_text(_first_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), offered=sys.argv[3] == "offered"))
