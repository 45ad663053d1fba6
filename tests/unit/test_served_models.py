"""Tokenizers are loaded in the background, in a process of their own; nobody waits for one, and a bad one is left alone."""

import json
import random
import threading
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lpc.wire.tokenizer_files import NAMES
from predictor_service.errors import TokenizerFailed, TokenizerLoading, UnknownServedModel
from predictor_service.requests.loading import LoadLimits, TokenizerError, TokenizerLoader, decoder_of
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
    served = ServedModels({"b": "/x", "a": "/y"})
    with pytest.raises(UnknownServedModel, match=r"'gpt-6'.*configured: a, b"):
        served.get("gpt-6")
    served.close()


def test_a_served_model_is_loaded_from_its_folder_with_its_markup(folder: Path) -> None:
    served = ServedModels({"m": str(folder)})
    served.wait(60)
    tokenizer = tokenizer_of(STYLES["llama3"])
    chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(("Hi", "Hello", "Bye"))]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert served.get("m").user_turns(ids, 5).prompts == ("Hi", "Bye")
    (known,) = served.known()
    assert (known.name, known.state, known.vocabulary) == ("m", "ready", len(tokenizer))
    served.close()


def test_nobody_waits_for_a_tokenizer_that_hangs_and_it_is_loaded_once(folder: Path) -> None:
    gate = threading.Event()
    loader = CountingLoader(gate)
    served = ServedModels({"m": str(folder)}, loader=loader)
    for _ in range(100):
        with pytest.raises(TokenizerLoading, match="is being loaded"):
            served.get("m")
    gate.set()
    served.wait(60)
    assert served.get("m").vocabulary and loader.loads == 1
    served.close()


def test_one_that_cannot_be_loaded_is_said_once_and_tried_again_after_minutes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    loader = CountingLoader()
    changed = threading.Event()
    served = ServedModels({"m": str(tmp_path / "m")}, loader=loader, clock=lambda: now[0])
    served.wait(60)
    served.watch(changed.set)
    for _ in range(100):
        with pytest.raises(TokenizerFailed, match=r"tokenizer of served model m cannot be loaded from .* no such folder"):
            served.get("m")
    assert loader.loads == 1
    assert sum("cannot be loaded" in record.message for record in caplog.records) == 1
    tokenizer_of(STYLES["llama3"]).save_pretrained(tmp_path / "m")
    now[0] = RETRY_S + 1
    changed.clear()
    with pytest.raises(TokenizerFailed):
        served.get("m")
    assert changed.wait(60)
    assert served.get("m").vocabulary and loader.loads == 2
    served.close()


def test_a_template_that_never_ends_is_ended(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    loader = TokenizerLoader(LoadLimits(offered_s=8))
    with pytest.raises(TokenizerError, match="more than 8 s"):
        loader.load(str(folder), offered=True)


def test_what_is_being_read_ends_with_the_sidecar(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(BOMB)
    served = ServedModels({"m": str(folder)})
    served.wait(0.5)
    served.close()
    done = threading.Event()
    served.watch(done.set)
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


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=["<s>", "<unk>"], unk_token="<unk>", show_progress=False)
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog", "hello world"] * 10, trainer)
    return made


def word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog", "hello world"] * 10, trainer)
    made.add_special_tokens(["<|late|>"])
    return made


@pytest.mark.parametrize("kind", [*STYLES, "unigram", "word piece"])
def test_what_is_kept_of_a_tokenizer_decodes_as_it_does(kind: str) -> None:
    made = {"unigram": unigram, "word piece": word_piece}
    whole = made[kind]() if kind in made else tokenizer_of(STYLES[kind]).backend_tokenizer
    kept = Tokenizer.from_str(decoder_of(whole))
    size = whole.get_vocab_size(with_added_tokens=True)
    assert kept.get_vocab_size(with_added_tokens=True) == size
    assert kept.get_added_tokens_decoder().keys() == whole.get_added_tokens_decoder().keys()
    rng = random.Random(0)
    for special in (True, False):
        for _ in range(300):
            ids = [rng.randrange(size) for _ in range(rng.randrange(1, 40))]
            assert kept.decode(ids, skip_special_tokens=special) == whole.decode(ids, skip_special_tokens=special)


def test_the_files_that_transformers_writes_are_on_the_list(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} <= set(NAMES)
