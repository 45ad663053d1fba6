"""Tokenizers are loaded in the background, in a process of their own; nobody waits for one, and a bad one is left alone."""

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lpc.errors import InvalidRequest
from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel
from predictor_service.requests.chat_template import learn_markup
from predictor_service.requests.decoders import check_decoder
from predictor_service.requests.loading import MAX_TOKEN, LoadLimits, TokenizerError, TokenizerLoader, renderer
from predictor_service.requests.marked_text import MarkingTokenizer
from predictor_service.requests.served_model import ServedModel
from predictor_service.requests.served_models import RETRY_S, ServedModels
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import patiently, until

BOMB = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer_of(STYLES["llama3"]).save_pretrained(tmp_path)
    return tmp_path


class CountingLoader(TokenizerLoader):
    """Counts what it is asked for; with a gate, waits there as a hub that does not answer makes it wait."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        super().__init__()
        self.loads = 0
        self._gate = gate

    def load(self, source: str, *, offered: bool):
        self.loads += 1
        if self._gate is not None:
            self._gate.wait(patiently())
        return super().load(source, offered=offered)


def test_a_served_model_is_loaded_from_its_folder_with_its_markup(folder: Path) -> None:
    served = ServedModels({"m": str(folder)})
    served.wait(patiently())
    tokenizer = tokenizer_of(STYLES["llama3"])
    chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(("Hi", "Hello", "Bye"))]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert served.get("m").user_turns(ids, 5).prompts == ("Hi", "Bye")
    (known,) = served.known()
    assert (known.name, known.state, known.vocabulary) == ("m", "ready", len(tokenizer))
    served.close()


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("style", ["qwen3-tools", "tools-as-users", "idefics3"])
def test_the_template_may_be_in_the_processors_file(tmp_path: Path, style: str, offered: bool) -> None:
    tokenizer = tokenizer_of(STYLES[style])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": STYLES[style].template}))
    markup = TokenizerLoader().load(str(tmp_path), offered=offered).markup
    direct = tokenizer_of(STYLES[style])
    assert markup is not None
    assert markup == learn_markup(MarkingTokenizer(direct.backend_tokenizer), renderer(direct))


def test_tools_answers_are_learnt_from_a_template_of_its_own(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(STYLES["qwen3-tools"])
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template = {"default": plain, "tool_use": tokenizer.chat_template}
    tokenizer.save_pretrained(tmp_path)
    markup = TokenizerLoader().load(str(tmp_path), offered=True).markup
    assert markup is not None and markup.tool_starts


def test_requests_do_not_wait_for_a_tokenizer_that_hangs(folder: Path) -> None:
    gate = threading.Event()
    loader = CountingLoader(gate)
    served = ServedModels({"m": str(folder)}, loader=loader)
    for _ in range(100):
        with pytest.raises(TokenizerLoading, match="is being loaded"):
            served.get("m")
    gate.set()
    served.wait(patiently())
    assert served.get("m").vocabulary and loader.loads == 1
    served.close()


def loaded(served: ServedModels) -> None:
    """Wait until no tokenizer is being loaded."""
    until(lambda: not served.count("loading"))


def test_a_failed_load_is_logged_once_and_repeated_after_minutes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    loader = CountingLoader()
    served = ServedModels({"m": str(tmp_path / "m")}, loader=loader, clock=lambda: now[0])
    served.wait(patiently())
    for _ in range(100):
        with pytest.raises(TokenizerFailed, match=r"model m cannot be loaded from .*: the folder does not exist"):
            served.get("m")
    assert loader.loads == 1
    assert sum("cannot be loaded" in record.message for record in caplog.records) == 1
    tokenizer_of(STYLES["llama3"]).save_pretrained(tmp_path / "m")
    now[0] = RETRY_S + 1
    with pytest.raises(TokenizerFailed):
        served.get("m")
    loaded(served)
    assert served.get("m").vocabulary and loader.loads == 2
    served.close()


def test_a_template_that_never_ends_is_killed(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    loader = TokenizerLoader(LoadLimits(offered_s=8))
    with pytest.raises(TokenizerError, match="more than 8 s"):
        loader.load(str(folder), offered=True)


def test_a_load_that_the_end_of_the_sidecar_interrupts_is_not_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = TokenizerLoader()
    served = ServedModels({"m": str(folder)}, loader=loader)
    until(lambda: loader.running)
    loader.close()
    served.wait(patiently())
    served.close()
    assert not caplog.records


def test_no_code_of_a_tokenizer_is_run(folder: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    (folder / "code.py").write_text(f"open({str(proof)!r}, 'w')\nclass Evil: pass\n")
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    configuration |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": [None, "code.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    (folder / "chat_template.jinja").write_text(
        f"{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}{{{{ cycler.__init__.__globals__.os.system('touch {proof}') }}}}"
    )
    loaded = TokenizerLoader().load(str(folder), offered=True)
    assert loaded.markup is None, "a template that breaks out of the sandbox is refused"
    assert loaded.backend.get_vocab_size() > 0
    assert not proof.exists()


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a folder's tokenizer.json."""
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_a_token_that_is_too_long_is_refused(folder: Path) -> None:
    rewritten(folder, lambda content: content["model"]["vocab"].update({"x" * (MAX_TOKEN + 1): 5000}))
    with pytest.raises(TokenizerError, match="a token of 1025 characters, more than 1024"):
        TokenizerLoader().load(str(folder), offered=True)


REGEX = {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": ""}
REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    ("decoder", "why"),
    [
        (REGEX, "decoder step Replace"),
        (
            {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Sequence", "decoders": [REGEX]}]},
            "decoder step Replace",
        ),
        ({**REPLACE, "content": "x" * 2**20}, "decoder step Replace"),
        ({**REPLACE, "pattern": {"String": ""}}, "decoder step Replace"),
        ({**STRIP, "stop": 1}, "decoder step Strip"),
        ({**STRIP, "start": 2**40}, "decoder step Strip"),
        ({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}, "decoder step CTC"),
        ({"type": "BPEDecoder", "suffix": ""}, "decoder step BPEDecoder"),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}] * 100}, "more than 16 steps"),
    ],
)
def test_a_decoder_whose_cost_is_not_bounded_is_refused(decoder: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_decoder(decoder)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Sequence", "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]},
    ],
    ids=["none", "llama 3, qwen, gpt-oss", "t5", "bert", "gpt", "llama 2, mistral, gemma"],
)
def test_the_decoders_of_published_models_are_allowed(decoder: dict[str, Any] | None) -> None:
    check_decoder(decoder)


def test_the_process_that_loads_an_offer_has_limits_and_no_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    monkeypatch.setenv("LPC_CACHE_REDIS_URL", "redis://:secret@nowhere")
    loader = TokenizerLoader()
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(loader.load, str(folder), offered=True)
        until(lambda: loader.running)
        (process,) = loader.running
        limits = Path(f"/proc/{process.pid}/limits")
        until(lambda: re.search(r"Max core file size +0 +0", limits.read_text()))
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        bounds = limits.read_text()
        loader.close()
        assert loading.exception() is not None
    assert b"secret" not in environment and b"HF_HUB_OFFLINE=1" in environment
    assert re.search(r"Max open files +256 +256", bounds) and re.search(r"Max processes +0 +0", bounds)
    assert re.search(r"Max file size +\d+ +\d+", bounds) and re.search(r"Max address space +\d+ +\d+", bounds)


def test_token_ids_that_stand_for_endless_text_are_refused_before_they_are_decoded(folder: Path) -> None:
    rewritten(folder, lambda content: content["model"]["vocab"].update({"x" * MAX_TOKEN: 5000}))
    loaded = TokenizerLoader().load(str(folder), offered=True)
    model = ServedModel("m", loaded.backend, loaded.markup, loaded.lengths)
    with pytest.raises(InvalidRequest, match=r"stand for up to 1[0-9]{8} characters, at most 16777216 are accepted"):
        model.user_turns([int(loaded.lengths.argmax())] * 104_000 + [1, 2], 5)


def test_forged_openings_do_not_keep_the_sidecar_busy(folder: Path) -> None:
    loaded = TokenizerLoader().load(str(folder), offered=True)
    model = ServedModel("m", loaded.backend, loaded.markup, loaded.lengths)
    assert loaded.markup is not None
    with pytest.raises(InvalidRequest, match="openings of a message, at most 8192 are accepted"):
        model.user_turns([loaded.markup.pieces[0].marker] * 2**17, 5)


class FailingLoader(TokenizerLoader):
    def load(self, source: str, *, offered: bool):
        raise TokenizerError("it hangs")


def test_an_offered_tokenizer_that_fails_is_accepted_again_later_and_later(folder: Path) -> None:
    now, sent = [0.0], []
    loader = FailingLoader()
    served = ServedModels({}, loader, clock=lambda: now[0])
    for at in range(0, 2 * 86_400, 60):
        now[0] = float(at)
        if isinstance(served.look("engine", "m", "0" * 64), UnknownServedModel):
            sent.append(at)
            upload = served.begin("engine", "m", "0" * 64, {"tokenizer.json": 2})
            upload.write(b"{}")
            upload.received_digest()
            served.received(upload)
            loaded(served)
            assert not list(loader.scratch.folder().iterdir())
        with pytest.raises(TokenizerFailed):
            served.get("m", "0" * 64)
    served.close()
    assert 2 < len(sent) < 8, sent


def test_offered_tokenizers_that_hang_do_not_delay_a_configured_one(folder: Path) -> None:
    gate = threading.Event()

    class HangingLoader(TokenizerLoader):
        def load(self, source: str, *, offered: bool):
            if offered:
                gate.wait(patiently())
            return super().load(source, offered=offered)

    now = [0.0]
    served = ServedModels({"m": str(folder / "later")}, HangingLoader(), clock=lambda: now[0])
    served.wait(patiently())
    for client in ("a", "b", "c"):
        upload = served.begin(client, "other", client, {"tokenizer.json": 2})
        upload.write(b"{}")
        upload.received_digest()
        served.received(upload)
    tokenizer_of(STYLES["llama3"]).save_pretrained(folder / "later")
    now[0] = RETRY_S
    with pytest.raises(TokenizerFailed):
        served.get("m")
    until(lambda: served.known()[0].state == "ready")
    assert served.count("loading") == 3
    gate.set()
    served.close()
