"""The tutorial "Will it pay?": its commands run, and print what the page has."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import lpc
from tests.page import ROOT, paragraphs, words


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_commands_print_what_the_tutorial_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    compared = 0
    for command in paragraphs("docs/tutorials/will-it-pay.md"):
        before, pipe, call = command.partition("lpc ")
        if command.startswith("pip "):
            continue
        if pipe and (not before or before.endswith("| ")):
            stdin = subprocess.run(before.removesuffix("| "), shell=True, check=True, capture_output=True).stdout
            jobs = ["--jobs", "1"] if call.startswith("simulate") else []  # lines come in order
            done = lpc(*shlex.split(call), *jobs, stdin=stdin, COLUMNS="160")
            assert done.returncode == 0, done.err
            printed = words(f"{done.err} {done.out}")
        elif command.startswith(("python ", "mkdir ")):
            script = command.replace("python docs/", f"{sys.executable} {ROOT}/docs/")
            subprocess.run(script, shell=True, check=True)
        else:
            compared += 1
            assert words(command) in printed
    assert compared == 10
    assert "An infinite cache would serve" in (tmp_path / "page.html").read_text()
