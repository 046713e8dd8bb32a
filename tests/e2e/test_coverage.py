"""Every case has tests, and every test that README.md names is there."""
import ast
import os
import re

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ("a1 a3 a4 a5 a6 a9 a11 a12 a13 a14 a16 a17 b1 b2 b4 b6 b8 b9 c3 c5 c7 d2 d3 d4 d6 d7 d8 d9 "
         "e6 e7 f1 f3 f4 f5 g1 g2 g3 g5").split()


def rows():
    with open(os.path.join(HERE, "README.md")) as f:
        return {m.group(1): m.group(2) for m in re.finditer(r"^\| (\w+) \| .* \| (.*) \|$", f.read(), re.M) if m.group(1) != "case"}


@pytest.mark.parametrize("case", CASES)
def test_the_tests_of_a_case_are_there(case):
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", rows()[case])
    in_c = re.findall(r"((?:`\w+` )+)in `(tests/unit/test_\w+\.c)`", rows()[case])
    assert named or in_c
    for tests, file in in_c:
        with open(os.path.join(HERE, "..", "..", file)) as f:
            there = set(re.findall(r"cmocka_unit_test\w*\((\w+)", f.read()))
        assert set(re.findall(r"\w+", tests)) <= there, (file, tests)
    for file, test in named:
        with open(os.path.join(HERE, file)) as f:
            there = {n.name for n in ast.parse(f.read()).body if isinstance(n, ast.FunctionDef)}
        assert test in there, f"{file} has no {test}"


def test_no_row_is_for_an_unknown_case():
    assert list(rows()) == CASES
