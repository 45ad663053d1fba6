"""Loads each tokenizer in a process of its own, which is killed if it hangs or uses too much memory.

The process returns the part of the tokenizer's backend that decoding needs, with bounded tokens and an allowed decoder, and
how the chat template marks user messages. The template is rendered in that process only, in transformers' sandbox. Code of a
tokenizer is never run (``trust_remote_code``). A process that loads an offered tokenizer gets nothing of the sidecar's
environment, does not use a hub, and has limits of memory, time, files and processes.

    python -m predictor_service.requests.loading SOURCE TARGET configured
    python -m predictor_service.requests.loading SOURCE TARGET offered
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import LpcError
from lpc.wire.terminal import shown
from lpc.wire.tokenizer_files import MAX_BYTES, NEEDED, without_needed
from predictor_service.requests.chat_template import Messages, Piece, Render, UserMarkup, learn_markup
from predictor_service.requests.decoders import check_decoder
from predictor_service.requests.marked_text import MarkingTokenizer, token_lengths
from predictor_service.requests.scratch import Scratch

MEMORY_BYTES: Final = 2**30
"""Largest address space of a process that loads an offered tokenizer: a template can build texts of any length. A vocabulary
of 262,144 tokens took 560 MiB. With the sidecar it must fit the container: Kubernetes ends all processes of a container that
runs out of memory."""
MAX_WRITTEN: Final = MAX_BYTES
"""Largest file that such a process may write. The parts that decoding needs are smaller than the tokenizer."""
MAX_REASON: Final = 400
"""Characters of the reason of a failure."""
MAX_TOKEN: Final = 1024
"""Largest number of characters of a token; in known tokenizers the longest are runs of 256 blanks."""
CPU_S: Final = 300
OPEN_FILES: Final = 256
NICENESS: Final = 10

BACKEND, LENGTHS, MARKUP, REASON = "backend.json", "lengths.npy", "markup.json", "reason.txt"


class TokenizerError(LpcError):
    """A tokenizer cannot be loaded. The message contains the reason."""


class LoaderClosed(TokenizerError):
    """The loader was closed before the tokenizer was loaded: no fault, so it is not logged."""

    def __init__(self) -> None:
        super().__init__("the sidecar is stopping")


class Loaded(NamedTuple):
    """The parts of a tokenizer that the sidecar uses.

    Attributes:
        backend: decodes as the tokenizer does, but does not encode.
        markup: how the chat template marks user messages; None: there is no usable template.
        lengths: number of characters of each id.
    """

    backend: Tokenizer
    markup: UserMarkup | None
    lengths: NDArray[np.int32]


@dataclass(frozen=True)
class LoadLimits:
    """Time limits of loading, seconds. A configured tokenizer may be downloaded from a hub."""

    offered_s: float = 60.0
    configured_s: float = 600.0


class TokenizerLoader:
    """Loads tokenizers, each in a process of its own. Thread-safe.

    Attributes:
        scratch: the folder for files of tokenizers.
        running: processes that load a tokenizer now.
    """

    def __init__(self, limits: LoadLimits = LoadLimits()) -> None:
        self.scratch = Scratch()
        self._limits = limits
        self._lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def load(self, source: str, *, offered: bool) -> Loaded:
        """Load a tokenizer from a folder or a hub, which takes seconds. Raises TokenizerError; LoaderClosed after ``close``.

        Args:
            offered: whether an engine has sent it.
        """
        if Path(source).is_absolute() and not Path(source).is_dir():
            raise TokenizerError("the folder does not exist")
        try:
            made = tempfile.TemporaryDirectory(dir=self.scratch.folder())
        except OSError as error:
            raise TokenizerError(f"the sidecar cannot write to {tempfile.gettempdir()} ({error.strerror or error})") from error
        with made as target:
            self._read(source, Path(target), offered=offered)
            try:
                backend = Tokenizer.from_file(str(Path(target, BACKEND)))
                lengths = np.load(Path(target, LENGTHS), allow_pickle=False)
                return Loaded(backend, _markup_of(json.loads(Path(target, MARKUP).read_text())), lengths)
            except Exception as error:  # the tokenizers library raises bare Exception
                raise TokenizerError(_first_line(error)) from error

    def close(self) -> None:
        """Kill the running processes, delete all files, and refuse further calls."""
        with self._lock:
            self._closed = True
            for process in self.running:
                process.kill()
        self.scratch.close()

    def _read(self, source: str, target: Path, *, offered: bool) -> None:
        # -P: modules in the working directory are not imported.
        command = [sys.executable, "-P", "-m", __name__, source, str(target), "offered" if offered else "configured"]
        quiet = {
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        if offered:
            environment = quiet | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "LC_ALL": "C.UTF-8"}
            environment |= dict.fromkeys(("HOME", "TMPDIR"), str(target))
            if "LD_LIBRARY_PATH" in os.environ:  # the interpreter may need it for its own libraries
                environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        else:
            # The environment contains the hub's token, proxy and cache.
            environment = os.environ | quiet
        null = subprocess.DEVNULL
        with self._lock:
            if self._closed:
                raise LoaderClosed
            process = subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null)
            self.running.add(process)
        seconds = self._limits.offered_s if offered else self._limits.configured_s
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TokenizerError(f"loading took more than {seconds:g} s") from None
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self.running.discard(process)
                closed = self._closed
        if closed:
            raise LoaderClosed
        if status:
            with suppress(OSError), Path(target, REASON).open(errors="replace") as file:
                if reason := shown(file.read(MAX_REASON))[:MAX_REASON]:  # empty: the disk is full
                    raise TokenizerError(reason)
            limit = f" (limit: {MEMORY_BYTES // 2**20} MiB)" if offered else ""
            raise TokenizerError(f"the process that loads it has died, possibly from lack of memory{limit} or disk space")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return shown(text.splitlines()[0])[:MAX_REASON] if text else type(error).__name__


def _markup_of(values: dict[str, Any] | None) -> UserMarkup | None:
    if values is None:
        return None
    values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    values["pieces"] = tuple(Piece(*piece) for piece in values["pieces"])
    values["tools"] = tuple((before, behind) for before, behind in values["tools"])
    return UserMarkup(**values)


# The code below runs in the process that loads a tokenizer.


def renderer(tokenizer: Any) -> Render:
    """Return a function that renders conversations through a transformers tokenizer's chat template, each on another date."""
    dates = ("1987-06-05", "2034-12-21")
    number = count()

    def render(messages: Messages, tools: Messages | None = None, options: Mapping[str, Any] | None = None) -> str | None:
        awaits_reply = messages[-1]["role"] != "assistant"
        try:
            # What a template writes of the current date must not become a part of the markup.
            today = f"{{% macro strftime_now(format) %}}{dates[next(number) % 2]}{{% endmacro %}}"
            text: str = tokenizer.apply_chat_template(
                messages,
                tools,
                chat_template=today + tokenizer.get_chat_template(tools=tools),
                tokenize=False,
                add_generation_prompt=awaits_reply,
                **(options or {}),
            )
        except Exception:  # templates can raise anything
            return None
        return text

    return render


def decoder_of(backend: Tokenizer) -> str:
    """Return, as JSON, a smaller tokenizer that decodes in the same way. Raises ValueError: the decoder is not allowed.

    For 150,000 tokens it takes 45 MB instead of 109 and is parsed in 0.2 s instead of 0.4. Parsing blocks the sidecar, because
    the tokenizers library holds the interpreter's lock.
    """
    content = json.loads(backend.to_str())
    check_decoder(content["decoder"])
    content |= dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    # Decoding needs only the map from ids to tokens, which a WordLevel model contains. If a token has two ids, which only
    # Unigram models allow, the model stays.
    if len(vocabulary) == backend.get_vocab_size(with_added_tokens=True):
        content["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _tokenizer(source: str, *, offered: bool) -> Any:
    """Return a fast tokenizer of transformers. Raises its errors, and ValueError if there is no fast tokenizer."""
    # transformers would import PyTorch if it is installed, which takes longer than everything else.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils.hub import cached_file

    try:
        found = AutoTokenizer.from_pretrained(source, use_fast=True, trust_remote_code=False, local_files_only=offered)
    except Exception:
        # The class is unknown, or needs code that is not run; tokenizer.json is enough.
        if not Path(source, NEEDED).is_file():
            if (names := _names_of(source, offered=offered)) and NEEDED not in names:
                raise ValueError(without_needed(names)) from None
            raise
        found = PreTrainedTokenizerFast.from_pretrained(source, local_files_only=True)
    if getattr(found, "backend_tokenizer", None) is None:
        raise ValueError(without_needed(_names_of(source, offered=offered)))
    if not found.chat_template:
        # Multimodal models have the template in a file that transformers reads for a processor only.
        with suppress(Exception):
            path = cached_file(source, "chat_template.json", local_files_only=offered)
            if path is not None:
                found.chat_template = json.loads(Path(path).read_text())["chat_template"]
    return found


def _names_of(source: str, *, offered: bool) -> list[str]:
    """Return the names of the files in a folder or on a hub; empty: unknown."""
    if Path(source).is_dir():
        return [path.name for path in Path(source).iterdir()]
    if not offered:
        with suppress(Exception):
            from huggingface_hub import list_repo_files

            return list_repo_files(source)
    return []


def _limit() -> None:
    """Set the resource limits of this process."""
    import resource

    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        # Ends this process if the sidecar is killed before it can do so.
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, MAX_WRITTEN),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def main(source: str, target: Path, *, offered: bool) -> int:
    """Load a tokenizer and write the parts in `Loaded` to a folder; return the exit status."""
    os.nice(NICENESS)
    with suppress(OSError):
        # If memory runs out, the kernel kills this process and not the sidecar.
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
        Tokenizer.from_str(decoder)  # if it kills a process, then not the sidecar
        markup = learn_markup(marking, renderer(tokenizer))
        (target / BACKEND).write_text(decoder)
        np.save(target / LENGTHS, lengths)
        (target / MARKUP).write_text(json.dumps(None if markup is None else asdict(markup)))
    except BaseException as error:  # a panic of the tokenizers library is not an Exception
        for part in (BACKEND, LENGTHS, MARKUP):  # the disk may be full
            (target / part).unlink(missing_ok=True)
        (target / REASON).write_text(_first_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), offered=sys.argv[3] == "offered"))
