"""Tokenizers are loaded in the background, in a process of their own; nobody waits for one, and a bad one is left alone."""

import json
import threading
from pathlib import Path

import pytest

from lpc.wire.tokenizer_files import NAMES
from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel
from predictor_service.requests.loading import LoadLimits, TokenizerError, TokenizerLoader
from predictor_service.requests.served_models import RETRY_S, ServedModels
from tests.chat_templates import STYLES, tokenizer_of

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
            self._gate.wait(60)
        return super().load(source, offered=offered)


def test_an_unknown_served_model_is_named_with_the_known_ones() -> None:
    models = ServedModels({"b": "/x", "a": "/y"})
    with pytest.raises(UnknownServedModel, match=r"'gpt-6'.*configured: a, b"):
        models.get("gpt-6")
    models.close()


def test_a_served_model_is_loaded_from_its_folder_with_its_markup(folder: Path) -> None:
    models = ServedModels({"m": str(folder)})
    models.wait(60)
    tokenizer = tokenizer_of(STYLES["llama3"])
    chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(("Hi", "Hello", "Bye"))]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert models.get("m").user_turns(ids, 5).prompts == ("Hi", "Bye")
    (known,) = models.known()
    assert (known.name, known.state, known.vocabulary) == ("m", "ready", len(tokenizer))
    models.close()


def test_nobody_waits_for_a_tokenizer_that_hangs_and_it_is_loaded_once(folder: Path) -> None:
    gate = threading.Event()
    loader = CountingLoader(gate)
    models = ServedModels({"m": str(folder)}, loader=loader)
    for _ in range(100):
        with pytest.raises(TokenizerLoading, match="is being loaded"):
            models.get("m")
    gate.set()
    models.wait(60)
    assert models.get("m").vocabulary and loader.loads == 1
    models.close()


def test_one_that_cannot_be_loaded_is_said_once_and_tried_again_after_minutes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    loader = CountingLoader()
    changed = threading.Event()
    models = ServedModels({"m": str(tmp_path / "m")}, loader=loader, clock=lambda: now[0])
    models.wait(60)
    models.watch(changed.set)
    for _ in range(100):
        with pytest.raises(TokenizerFailed, match=r"tokenizer of served model m cannot be loaded from .* no such folder"):
            models.get("m")
    assert loader.loads == 1
    assert sum("cannot be loaded" in record.message for record in caplog.records) == 1
    tokenizer_of(STYLES["llama3"]).save_pretrained(tmp_path / "m")
    now[0] = RETRY_S + 1
    changed.clear()
    with pytest.raises(TokenizerFailed):
        models.get("m")
    assert changed.wait(60)
    assert models.get("m").vocabulary and loader.loads == 2
    models.close()


def test_a_template_that_never_ends_is_ended(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    loader = TokenizerLoader(LoadLimits(offered_s=8))
    with pytest.raises(TokenizerError, match="more than 8 s"):
        loader.load(str(folder), offered=True)


def test_what_is_being_read_ends_with_the_sidecar(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    models = ServedModels({"m": str(folder)})
    models.wait(0.5)
    models.close()
    done = threading.Event()
    models.watch(done.set)
    assert done.wait(30), "the process was left running"


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


def test_an_id_far_outside_is_refused(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    last = content["added_tokens"][-1]
    content["model"]["vocab"][last["content"]] = last["id"] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="its ids go up to 2147483649"):
        TokenizerLoader().load(str(folder), offered=True)


def test_the_files_that_transformers_writes_are_on_the_list(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} <= set(NAMES)
