"""What the info string of a fence says: language, and code that slipped onto the fence line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_ddtree.coding.extract.lines import strip_invisible

#: "plain" is untagged or an unknown tag: taken as Python if it parses. "markdown" wraps other blocks.
Kind: TypeAlias = Literal["python", "plain", "markdown", "other"]

_PYTHON: Final = re.compile(
    r"(?:language-)?(?:i?py(?:thon)?[\d.]*|cpython[\d.]*|pypy[\d.]*|python_code|python-code|[\w/-]+\.py)"
)
_MARKDOWN: Final = frozenset({"markdown", "md", "mdx", "mdown", "gfm", "commonmark"})
_OTHER: Final = frozenset(
    """
    text txt plaintext plain-text output out console terminal log stdin stdout stderr result results ascii
    bash sh shell zsh fish csh ksh powershell ps1 pwsh cmd bat batch shell-session shellsession
    json jsonc json5 jsonl ndjson yaml yml toml ini cfg conf properties env dotenv xml html xhtml svg css
    scss sass less csv tsv
    js javascript mjs cjs node ts typescript jsx tsx java c h cpp c++ cc cxx hpp objc objective-c cs csharp
    c# fs f# fsharp vb go golang rs rust rb ruby php swift kotlin kt kts scala sc perl pl pm lua r julia jl
    haskell hs ocaml ml sql mysql pgsql psql sqlite plsql matlab octave fortran f90 cobol ada pascal delphi
    d nim zig dart elixir ex exs erlang erl clojure clj lisp elisp scheme racket prolog groovy gradle asm
    nasm assembly wasm wat llvm vhdl verilog systemverilog solidity cuda opencl glsl hlsl v
    latex tex bibtex math katex mermaid dot graphviz plantuml puml diff patch pycon pycon3 python-repl
    python-console ipython-console ipythonconsole pytb py3tb python-traceback traceback doctest rst
    restructuredtext asciidoc adoc pseudo pseudocode pseudo-code algorithm dockerfile docker makefile make
    cmake nginx apache http graphql proto protobuf thrift hcl terraform tf vim viml regex ebnf bnf abnf
    cython pyx starlark bazel jinja jinja2 django mako tool_call tool_calls
    """.split()  # noqa: SIM905 (one name a line would be two hundred lines)
)
_TOKEN: Final = re.compile(r"\{?\s*\.?\s*([A-Za-z][\w+#./-]*)")
#: What may follow a language tag: attributes, a file name, line marks.
_ATTRIBUTES: Final = re.compile(
    r"\s*+(?:[\s}]*+|[:{,;|#%&.].*|[\w.-]++\s*+=.*|[\w/-]++\.\w{1,4}\s*+)", re.DOTALL
)
_MAX_ATTRIBUTES: Final = 200
_CODE: Final = re.compile(
    r"(?:async\s+def|def|class)\s+\w|import\s+\w|from\s+[\w.]+\s+import\b|@\w|(?:print|input)\s*\(|\w+ = \S"
    r"|(?:for|while|if|with|try)\b.*:"
)
_KEYWORD: Final = re.compile(r"(?:async\s+def|def|class)\s+\w|import\s+\w|from\s+[\w.]+\s+import\b|@\w")


@dataclass(frozen=True, slots=True)
class Info:
    """A fence's info string. `code_at` is the index in it where code starts, None for no code."""

    language: str
    kind: Kind
    known: bool
    code_at: int | None


def _classify(tag: str) -> tuple[Kind, bool]:
    if _PYTHON.fullmatch(tag):
        return "python", True
    if tag in _MARKDOWN:
        return "markdown", True
    if tag in _OTHER:
        return "other", True
    return "plain", False


def read_info(info: str) -> Info:
    """Read an info string such as ``python``, ``{.py title="a"}``, ``python3 def f():`` or ``def f():``.

    `known` says that the string is a language tag that this module knows, with nothing but attributes
    behind it: the sign of an opening fence, where prose behind a fence is the sign of a closing one.
    """
    visible = strip_invisible(info)
    if visible != info:
        read = read_info(visible)
        if read.code_at is None:
            return read
        code = visible[read.code_at :]
        code_at = len(info) - len(code) if info.endswith(code) else None
        return Info(read.language, read.kind, read.known, code_at)
    lead = len(info) - len(info.lstrip())
    if _KEYWORD.match(info, lead):
        return Info("", "plain", False, lead)
    match = _TOKEN.match(info, lead)
    if match is None:
        return Info("", "plain", False, None)
    tag = match[1].lower()
    kind, known = _classify(tag)
    rest_at = match.end()
    rest = info[rest_at:]
    stripped = rest.lstrip()
    if known and kind == "python" and stripped and rest != stripped and _CODE.match(stripped):
        return Info(tag, kind, True, rest_at + len(rest) - len(stripped))
    attributes_only = len(rest) <= _MAX_ATTRIBUTES and _ATTRIBUTES.fullmatch(rest) is not None
    return Info(tag, kind, known and attributes_only, None)
