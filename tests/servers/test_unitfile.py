"""Unit files: what a service runs, and the drop-in that replaces it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddtree.servers import unitfile

UNIT = r"""# /etc/systemd/system/llm.service
[Unit]
Description=x
ExecStart=not this

[Service]
# ExecStart=nor this
WorkingDirectory=-/srv/llm
Environment=A=1 "B=two words"
Environment='C=x"y'
ExecStart=/bin/old
ExecStart=
ExecStart=-/venv/bin/python -m sglang.launch_server --model-path "/models/a b" \
   --port=8000 --speculative-algorithm DFLASH --speculative-num-draft-tokens 8 \
   --speculative-dflash-enable-ddtree --trust-remote-code --label 100%% --json '{"a": 1}' --cuda-graph-bs 1 2 4

# /etc/systemd/system/llm.service.d/10.conf
[Service]
Nice=3
"""


def test_command_of_a_unit() -> None:
    command = unitfile.exec_start(UNIT)
    assert command is not None
    assert command.plain[:5] == (
        "/venv/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/models/a b",
    )
    assert command.plain[-7:] == ("100%", "--json", '{"a": 1}', "--cuda-graph-bs", "1", "2", "4")
    assert unitfile.program(command) == ("/venv/bin/python", "-m", "sglang.launch_server")
    assert unitfile.value(command, "--port") == "8000"
    assert unitfile.value(command, "--host") is None
    assert unitfile.surroundings(UNIT) == ({"A": "1", "B": "two words", "C": 'x"y'}, "/srv/llm")


def test_without_what_a_config_sets() -> None:
    command = unitfile.exec_start(UNIT)
    assert command is not None
    left = unitfile.without(command, ["--cuda-graph-bs", "--port"])
    assert left.plain[3:] == (
        "--model-path",
        "/models/a b",
        "--trust-remote-code",
        "--label",
        "100%",
        "--json",
        '{"a": 1}',
    )
    assert '"/models/a b"' in left.raw, "as its owner wrote it"


def test_a_comment_between_the_lines_of_a_command_is_none_of_its_words() -> None:
    command = unitfile.exec_start(
        "[Service]\nExecStart=/bin/x --a 1 \\\n  # --tp 2 \\\n ; --old=3\n  --b 2 \\\n\nEnvironment=A=1\n"
    )
    assert command is not None
    assert command.plain == ("/bin/x", "--a", "1", "--b", "2")
    assert unitfile.surroundings("[Service]\nEnvironment=A=1 \\\n# B=2\nC=3\n") == (
        {"A": "1", "C": "3"},
        None,
    )


def test_a_dollar_of_a_variable_is_one() -> None:
    """systemd expands nothing in Environment= but specifiers; `$$` would reach the server as two."""
    text = unitfile.drop_in(unitfile.Command(("/bin/x",), ("/bin/x",)), [], {"A": "a$b", "P": "50%"})
    assert "Environment=A=a$b\n" in text
    assert unitfile.surroundings(text) == ({"A": "a$b", "P": "50%"}, None)
    assert unitfile.surroundings("[Service]\nEnvironment=A=$$x\n") == ({"A": "$$x"}, None)


def test_drop_in() -> None:
    command = unitfile.exec_start(UNIT)
    assert command is not None
    text = unitfile.drop_in(unitfile.without(command, []), ["--x", 'a "b" $c %d'], {"TOPK": "4", "Q": "x y"})
    lines = text.splitlines()
    assert lines[1:3] == ["[Service]", "ExecStart="]
    assert lines[3].endswith(r'--cuda-graph-bs 1 2 4 --x "a \"b\" $$c %%d"')
    assert lines[4:7] == ['Environment="Q=x y"', "Environment=TOPK=4", "Restart=no"]
    again = unitfile.exec_start(UNIT + text)
    assert again is not None
    assert again.plain[-2:] == ("--x", 'a "b" $c %d')


def test_units_without_a_command() -> None:
    assert unitfile.exec_start("[Unit]\nDescription=x\n") is None
    assert unitfile.exec_start("[Service]\nExecStart=\n") is None


@example(["a\u2028b"])
@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc"))), min_size=1))
def test_what_is_escaped_comes_back(words: list[str]) -> None:
    line = " ".join(["/bin/x", *map(unitfile.escape, words)])
    command = unitfile.exec_start(f"[Service]\nExecStart={line}\n")
    assert command is not None
    assert list(command.plain[1:]) == words
