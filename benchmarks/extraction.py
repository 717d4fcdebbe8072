"""How long extraction takes on long and on hostile responses, and how its cost grows.

    python -m benchmarks.extraction [--lines 20000] [--repeat 3]

Prints, for each kind of response at n/4 and n lines, the best time in milliseconds, the growth (4 means
linear) and the counted work. Exits 1 if a response of n lines takes 200 ms or if a cost grows more than
eightfold from n/4 to n.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from pytest_ddtree.coding.extract.api import run_extraction
from pytest_ddtree.coding.extract.budget import Work
from pytest_ddtree.coding.extract.choose import Target

FINAL = "```python\ndef target(n):\n    return n\n```\n"
LIMIT_S = 0.2
MOST_GROWTH = 8.0


def _cycle(*lines: str) -> Callable[[int], str]:
    return lambda n: "\n".join(lines[i % len(lines)] for i in range(n))


RESPONSES: dict[str, Callable[[int], str]] = {
    "prose": lambda n: _cycle("Some words about the target, and more of them.")(n) + "\n" + FINAL,
    "prose without answer": _cycle("def of prose = words (target) and `code` here: x"),
    "prose in thinking": lambda n: "<think>\n" + _cycle("Maybe target is fine.")(n) + "\n</think>\n" + FINAL,
    "bare fences": _cycle("```"),
    "python fences": _cycle("```python"),
    "python fences with text": _cycle("```python", "target x"),
    "small blocks": _cycle("```python", "def target(n): return", "```"),
    "small broken blocks": _cycle("```python", "def target(n) return", "```"),
    "alternating fences": _cycle("```", "~~~", "````python", "~~~~"),
    "growing fences": lambda n: "\n".join("`" * (3 + i) for i in range(int((2 * n) ** 0.5) * 3)),
    "shrinking fences": lambda n: "\n".join(
        "`" * (3 + i) + "\n</think>" for i in range(int((2 * n) ** 0.5) * 3, 0, -1)
    ),
    "one line of backticks": lambda n: "`" * n * 20,
    "one line of fences": lambda n: "``` " * n,
    "one line of closers": lambda n: "</think> " * n,
    "one line of closers and fences": lambda n: "</think>``` " * n,
    "one line of quoted closers": lambda n: '"</think>" \'' * n,
    "closers": _cycle("</think>"),
    "openers": _cycle("<think>"),
    "tool calls": _cycle("<tool_call>{}</tool_call>"),
    "tool calls never closed": _cycle("say <tool_call> here"),
    "openers and closers": _cycle("<think>", "</think>"),
    "closers in open fences": _cycle("```python", "</think>"),
    "closers in closed fences": _cycle("```", "</think>", "```"),
    "closers in open strings": _cycle("```python", "'''", "</think>", "```"),
    "closers before one big block": lambda n: (
        "</think>\n" * (n // 2) + "```python\n" + "x = 1\n" * (n // 2) + "```"
    ),
    "mismatched closers": lambda n: "<think>\n" + "</thought>\n" * n,
    "triple quotes": _cycle("```python", '"""', "```"),
    "escaped triple quotes": _cycle("```python", '\\"""', "```"),
    "triple quote never closed": lambda n: '```python\n"""\n' + "```\n" * n,
    "code tags never closed": _cycle("<code>"),
    "code tags": _cycle("<code>target</code>"),
    "nested code tags": lambda n: "<code>\n" * n + "</code>",
    "channel markers in quotes on one line": lambda n: '"<|channel|>a ' * n,
    "deep indentation": lambda n: (" " * 100 + "```python\n" + (" " * 100 + "target\n") * 4) * (n // 20),
    "block quotes": _cycle("> ```python", "> target"),
    "list markers": lambda n: "- " * n + "```python\n" + FINAL,
    "raw statements": _cycle("target = 1", "prose goes here"),
    "raw definitions": _cycle("def target(n):", "    return n +", "prose"),
    "html entities": lambda n: "```python\n" + "&lt;" * n + "target\n```",
    "channel markers": _cycle("<|channel|>analysis<|message|>x"),
    "stop tokens in quotes": _cycle('"<|im_end|>" and "</think>"'),
    "nul bytes": lambda n: "\0\n" * n,
    "deep nesting": lambda n: "```python\ndef target(n): return " + "(" * n + "\n```",
    "deep unary": lambda n: "```python\ndef target(n): return " + "-" * n + "1\n```",
    "glued closers": _cycle("```python", "target```"),
    "dots behind fences": lambda n: "```python\ntarget\n```" + "." * n + "x",
    "angle brackets behind fences": lambda n: "```python\ntarget\n```" + "<a." * n + "é",
    "white space": lambda n: (" " * 40 + "\n") * n,
    "one line of white space behind a tag": lambda n: "```python" + " " * 20 * n + "x\ntarget\n```",
    "odd spaces": lambda n: "\u00a0\u200b\n" * n,
    "lone carriage returns": lambda n: "word\r" * n + FINAL,
}


def measure(text: str, repeat: int) -> tuple[float, Work]:
    """Best CPU time in seconds of `repeat` extractions of one response, and the work of the last."""
    best = float("inf")
    work = Work()
    for _ in range(repeat):
        work = Work()
        start = time.process_time()
        run_extraction(text, Target("target", False), work=work)
        best = min(best, time.process_time() - start)
    return best, work


def main() -> int:
    """Measure every kind of response; 1 if one is too slow or grows too fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    failed = False
    print(
        f"{'response':38} {'chars':>9} {'n/4 ms':>8} {'n ms':>8} {'growth':>7} {'fence lines':>11} {'scanned':>10} parsed"
    )
    for name, make in RESPONSES.items():
        quarter, _ = measure(make(options.lines // 4), options.repeat)
        text = make(options.lines)
        full, work = measure(text, options.repeat)
        growth = full / quarter
        bad = full >= LIMIT_S or (growth > MOST_GROWTH and full > 0.02)
        failed |= bad
        print(
            f"{name:38} {len(text):9} {quarter * 1e3:8.1f} {full * 1e3:8.1f} {growth:7.1f} {work.fence_lines:11}"
            f" {work.scanned:10} {work.parsed}{'  TOO SLOW' if bad else ''}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
