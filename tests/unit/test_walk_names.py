"""On each walk of the architecture page a class name belongs to one class, so that a reader need not ask which one is meant."""

import ast
from collections import defaultdict

import pytest

from tests.walks import ROOT, stated_files, stated_types

WALKS = (1, 2, 3, 4, 5)


@pytest.mark.parametrize("number", WALKS)
def test_no_two_files_on_a_walk_define_a_class_of_one_name(number: int) -> None:
    files = stated_files(number)
    assert files
    defined = defaultdict(list)
    for path in sorted(files):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(path)
    assert not {name: paths for name, paths in defined.items() if len(paths) > 1}


@pytest.mark.parametrize("number", WALKS[:-1])
def test_no_two_types_on_a_walk_have_one_name_messages_of_the_wire_included(number: int) -> None:
    types = stated_types(number)
    assert sorted(types) == sorted(set(types))
