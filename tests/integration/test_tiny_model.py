"""`lpc tiny-model`: a model that transformers and vLLM load, whole or not at all."""

import stat
import string
import sys
from pathlib import Path

import pytest

from tests.command import lpc


def test_it_is_a_model_with_a_chat_template_that_answers_in_letters(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "new" / "my-model"
    done = lpc("tiny-model", str(folder))
    assert (done.returncode, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"vllm serve {folder} --enforce-eager --kv-cache-memory-bytes 256M"
    assert [path.name for path in folder.parent.iterdir()] == ["my-model"]
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444 for path in folder.iterdir()), "another user may serve it"
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModelForCausalLM.from_pretrained(str(folder))
    chats = [[{"role": "user", "content": text}] for text in ("Where is it?", "Wo ist es?")]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    assert tokenizer.decode(prompts[0]) == "<|user|>Where is it?<|end|><|assistant|>"
    replies = [
        tokenizer.decode(model.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[0, len(prompt) :])
        for prompt in prompts
    ]
    assert all(len(reply) == 32 and set(reply) <= set(string.ascii_letters) for reply in replies)
    assert replies[0] != replies[1]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_an_existing_place_is_refused_and_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "taken"
    if kind == "folder":
        place.mkdir()
        (place / "notes.txt").write_text("mine")
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "nowhere")
    done = lpc("tiny-model", str(place))
    assert done.returncode == 2
    assert done.err == f"lpc: {place} exists: serve it if it is a model, or name a new folder\n"
    assert list(tmp_path.iterdir()) == [place]
    assert kind != "folder" or (place / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("package", ["tokenizers", "torch", "transformers"])
def test_without_vllms_packages_it_names_the_environment_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = lpc("tiny-model", str(tmp_path / "model"))
    assert done.returncode == 2
    assert done.err == f"lpc: this command needs the package {package}: run it in vLLM's environment, which has it\n"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_names_the_folder(small_disk: Path) -> None:
    done = lpc("tiny-model", str(small_disk / "model"))
    assert done.returncode == 1
    assert done.err == f"lpc: {small_disk}/model: No space left on device: free space there, then run it again\n"
    assert list(small_disk.iterdir()) == []
