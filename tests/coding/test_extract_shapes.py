"""The response shapes that broke somebody's harness, one test each, with inputs of our own."""

from __future__ import annotations

import pytest
from answer_samples import GOOD, WRONG, Shape, fence

DRAFT = fence(WRONG)
FINAL = fence(GOOD)

SHAPES = [
    # Thinking and channels
    Shape(
        "01_think_pair_with_a_wrong_draft",
        f"<think>\nMaybe:\n{DRAFT}No, that is wrong.\n</think>\nHere:\n{FINAL}",
    ),
    Shape("02_template_opened_thinking", f"First idea:\n{DRAFT}That subtracts.\n</think>\n\n{FINAL}"),
    Shape("03_unclosed_think", f"<think>\nThis works:\n{FINAL}Let me check once more", "unclosed_thinking"),
    Shape(
        "03_unclosed_think_at_the_limit",
        f"<think>\nThis works:\n{FINAL}Let me check",
        "truncated",
        finish_reason="length",
    ),
    Shape(
        "04_thinking_in_prose_cut_at_the_limit",
        f"Here's a thinking process:\n\n1. Try this:\n{FINAL}\n2. Now compare with",
        "truncated",
        finish_reason="length",
    ),
    Shape(
        "04_thinking_in_prose_cut_before_any_code",
        "Here's a thinking process: we sum both",
        "truncated",
        finish_reason="length",
    ),
    Shape("05_draft_fence_left_open_in_think", f"<think>\n```python\n{WRONG}hmm\n</think>\nAnswer:\n{FINAL}"),
    Shape("05_untagged_draft_fence_left_open", f"<think>\n```\n{WRONG}</think>\n```\n{GOOD}```\n"),
    Shape(
        "06_closer_quoted_in_thinking",
        f"<think>\nI must write `</think>` and then the code.\n{DRAFT}Not yet.\n</think>\n{FINAL}",
    ),
    Shape(
        "06_closer_in_a_string_in_thinking",
        f'<think>\nA test could do s.split("</think>") on it.\n{DRAFT}</think>\n{FINAL}',
    ),
    Shape(
        "07_closer_in_a_string_of_the_answer",
        "<think>\nshort\n</think>\n" + fence('END = "</think>"\n' + GOOD),
    ),
    Shape(
        "07_closer_in_a_comment_of_the_answer",
        "<think>\nshort\n</think>\n" + fence("# text up to </think> is dropped\n" + GOOD),
    ),
    Shape(
        "07_closer_in_a_docstring_of_an_answer_without_thinking",
        fence('def add(a, b):\n    """Add.\n\n    </think>\n    """\n    return a + b\n'),
    ),
    Shape(
        "08_interleaved_think",
        f"<think>a plan</think>\nSome prose.\n<think>\n{DRAFT}</think>\nSo:\n{FINAL}",
    ),
    *[
        Shape(f"09_spelling_{name}", f"{opening}\n{DRAFT}{closing}\n{FINAL}")
        for name, opening, closing in [
            ("thinking", "<thinking>", "</thinking>"),
            ("thought", "<thought>", "</thought>"),
            ("brackets", "[THINK]", "[/THINK]"),
            ("mm", "<mm:think>", "</mm:think>"),
            ("seed", "<seed:think>", "</seed:think>"),
            ("capitals", "<THINK>", "</THINK>"),
            ("attributes", '<think effort="high">', "</think>"),
        ]
    ],
    Shape("10_kimi_glyphs", f"◁think▷\n{DRAFT}◁/think▷\n{FINAL}"),
    Shape(
        "10_thinking_left_through_a_tool_call",
        f"<think>\n{DRAFT}<|tool_calls_section_begin|><|tool_call_begin|>run<|tool_calls_section_end|>\n{FINAL}",
    ),
    Shape(
        "10_channel_markers",
        f"<|open|>think<|sep|>{DRAFT}<|close|>think<|sep|><|open|>response<|sep|>\n{FINAL}",
    ),
    Shape(
        "10_channel_markers_closer_left_out",
        f"{DRAFT}<|open|>response<|sep|>{FINAL}<|close|>response<|sep|><|close|>message<|sep|>",
    ),
    Shape(
        "10_channel_markers_malformed_opener", f"<|open|>think<|sep\n{DRAFT}<|close|>think<|sep|>\n{FINAL}"
    ),
    Shape(
        "11_harmony_channels",
        f"<|channel|>analysis<|message|>Try\n{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>\n{FINAL}<|return|>",
    ),
    Shape(
        "11_harmony_specials_decoded_away", f"analysisWe try\n{DRAFT}so.assistantfinalHere you go:\n{FINAL}"
    ),
    Shape(
        "11_harmony_commentary_between",
        f"<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=run<|message|>{DRAFT}"
        f"<|call|><|start|>assistant<|channel|>final<|message|>{FINAL}",
    ),
    Shape(
        "11_harmony_malformed_header",
        f"<|channel|>analysis<|message|>{DRAFT}<|end|><|channel|>final\n{FINAL}",
    ),
    Shape(
        "11_harmony_without_final", f"<|channel|>analysis<|message|>Try\n{FINAL}<|end|>", "unclosed_thinking"
    ),
    Shape(
        "11_harmony_cut_in_analysis",
        f"<|channel|>analysis<|message|>Try\n{FINAL}",
        "truncated",
        finish_reason="length",
    ),
    Shape("12_reasoning_in_its_own_field", FINAL, reasoning=f"A draft:\n{DRAFT}"),
    Shape("12_reasoning_is_never_read_for_code", "See above.", "no_code", reasoning=FINAL),
    Shape("13_null_content_answer_in_reasoning", None, "answer_in_reasoning", reasoning=f"So:\n{FINAL}"),
    Shape(
        "13_empty_content_answer_in_reasoning",
        "\n",
        "answer_in_reasoning",
        reasoning=FINAL,
        finish_reason="stop",
    ),
    Shape("13_empty_content_reasoning_without_code", "", "empty", reasoning="I wonder."),
    Shape("13_empty_content_reasoning_cut", "", "truncated", reasoning=FINAL, finish_reason="length"),
    Shape(
        "14_chain_of_thought_without_tags", f"Okay, let me think. Maybe\n{DRAFT}No: it must add.\n\n{FINAL}"
    ),
    Shape(
        "15_whole_answer_inside_the_tags", f"<think>\nFinal answer:\n{FINAL}</think>", "answer_in_reasoning"
    ),
    # Fences
    *[
        Shape(f"16_tag_{name}", f"Code:\n```{tag}\n{GOOD}```\n")
        for name, tag in [
            ("py", "py"),
            ("python3", "python3"),
            ("capital", "Python"),
            ("none", ""),
            ("trailing_space", "python   "),
            ("title", 'python title="add.py"'),
            ("space_before", " python"),
            ("braces", "{.python}"),
            ("file_name", "python:add.py"),
            ("version", "python3.11"),
        ]
    ],
    Shape("17_output_block_after_the_solution", f"{FINAL}\nOutput:\n```text\n5\n```\n"),
    Shape("17_untagged_output_after_the_solution", f"{FINAL}\nIt prints:\n```\n5\n```\n"),
    Shape(
        "17_summary_block_after_the_solution", f"{FINAL}\n```\nSummary: adds both, in constant time.\n```\n"
    ),
    Shape("18_usage_block_after_the_solution", FINAL + "\nUsage:\n" + fence("print(add(1, 2))")),
    Shape("18_usage_that_imports_the_name", FINAL + fence("from solution import add\nadd(1, 2)")),
    Shape(
        "18_tests_block_after_the_solution",
        FINAL + fence("def test_add():\n    assert add(1, 1) == 2"),
    ),
    Shape("19_bash_block_before", f"```bash\npip install numpy\n```\n{FINAL}"),
    Shape("19_pycon_block_before", f"```pycon\n>>> add(1, 2)\n3\n```\n{FINAL}"),
    Shape(
        "19_diff_block_before",
        f"```diff\n-def add(a, b): return a - b\n+def add(a, b): return a + b\n```\n{FINAL}",
    ),
    Shape("19_json_block_before", f'```json\n{{"add": 1}}\n```\n{FINAL}'),
    Shape("20_draft_then_corrected", f"First try:\n{DRAFT}That subtracts. Corrected:\n{FINAL}"),
    Shape(
        "21_split_over_two_blocks",
        "A helper:\n"
        + fence("def plus(x, y):\n    return x + y")
        + "Then:\n"
        + fence("def add(a, b):\n    return plus(a, b)"),
    ),
    Shape("22_four_backticks", f"````python\n{GOOD}````\n"),
    Shape("22_tildes", f"~~~python\n{GOOD}~~~\n"),
    Shape(
        "22_in_a_list_indented",
        "1. Define it:\n\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. Done.\n",
    ),
    Shape("23_crlf", FINAL.replace("\n", "\r\n")),
    Shape("23_lone_cr", FINAL.replace("\n", "\r")),
    Shape(
        "24_backticks_in_a_docstring",
        fence('def add(a, b):\n    """Add.\n\n```\nadd(1, 2)\n```\n    """\n    return a + b\n'),
    ),
    Shape(
        "24_backticks_in_a_docstring_two_blocks_follow",
        fence('def add(a, b):\n    """Add.\n\n```\nadd(1, 2)\n```\n    """\n    return a + b\n')
        + "Then:\n```text\n3\n```\nand\n```bash\npython add.py\n```\n",
    ),
    Shape("24_backticks_in_a_string", fence('MARK = "```"\n' + GOOD)),
    Shape("25_opener_never_closed", f"Here:\n```python\n{GOOD}"),
    Shape("25_cut_in_the_function", "Here:\n```python\ndef add(a, b):\n    return (a +", "truncated_block"),
    Shape(
        "25_cut_in_the_function_at_the_limit",
        "Here:\n```python\ndef add(a, b):\n    return (a +",
        "truncated",
        finish_reason="length",
    ),
    Shape("26_closer_without_opener", f"{GOOD}```\nThis adds both.\n"),
    Shape("27_closer_glued_to_a_special_token", f"```python\n{GOOD}```<|im_end|>"),
    Shape("27_trailing_special_token", f"{FINAL}<|endoftext|>"),
    Shape("27_half_a_special_token", f"```python\n{GOOD}```<|endof"),
    Shape("28_inline_fence", "```python def add(a, b): return a + b```"),
    Shape("28_xml_code_tags", f"<code>\n{GOOD}</code>"),
    Shape("28_no_fence_prose_around", f"Sure, here it is.\n\n{GOOD}\nIt adds the two.\n"),
    Shape("29_first_identifier_on_the_fence_line", "```def add(a, b):\n    return a + b\n```"),
    Shape(
        "30_prompt_repeated_before_the_code",
        fence('def add(a, b):\n    """Add."""') + "Solution:\n" + FINAL,
    ),
    Shape("30_only_the_body", "    return a + b\n", "no_code"),
    Shape("30_solution_class", fence("class Solution:\n    def add(self, a, b):\n        return a + b\n")),
    # Code shapes
    Shape(
        "31_main_guard_with_input",
        fence(GOOD + "\nif __name__ == '__main__':\n    print(add(*map(int, input().split())))\n"),
    ),
    Shape(
        "32_stdin_program",
        fence("import sys\nn = int(input())\nrest = sys.stdin.buffer.read()\nprint(n + len(rest))\n"),
        entry_point=None,
        options={"stdin": True},
    ),
    Shape("33_decorated", fence("from functools import cache\n\n@cache\n" + GOOD)),
    Shape("33_lambda", fence("add = lambda a, b: a + b\n")),
    Shape(
        "33_tuple_unpacked_constants", fence("ZERO, ONE = 0, 1\n\ndef add(a, b):\n    return a + b + ZERO\n")
    ),
    Shape(
        "33_two_space_indent_with_imports",
        fence("import math\n\ndef add(a, b):\n  return int(math.fsum([a, b]))\n"),
    ),
    Shape(
        "33_imports_in_try",
        fence("try:\n    import numpy_missing as np\nexcept ImportError:\n    np = None\n\n" + GOOD),
    ),
    Shape(
        "33_defined_in_if",
        fence("import sys\nif sys.version_info >= (3,):\n    def add(a, b):\n        return a + b\n"),
    ),
    Shape("34_html_escaped", "```python\ndef add(a, b):\n    return a + b if a &lt;= b else b + a\n```"),
    Shape(
        "34_html_escaped_that_still_parses",
        "```python\ndef add(a, b):\n    x = a &lt; b\n    return a + b\n```",
    ),
    Shape("34_nbsp_indentation", "```python\ndef add(a, b):\n\u00a0\u00a0\u00a0\u00a0return a + b\n```"),
    Shape("34_smart_quotes", "```python\nNAME = “sum”\n\ndef add(a, b):\n    return a + b\n```"),
    Shape("34_full_width", "```python\ndef add（a， b）：\n    return a + b\n```"),
    Shape("34_ansi_escapes", "```python\n\x1b[32mdef\x1b[0m add(a, b):\n    return a + b\n```"),
    Shape("34_zero_width", "```python\ndef add(a, b):\u200b\n    return a + b\n```"),
    Shape("35_async_def", fence("async def add(a, b):\n    return a + b\n")),
    Shape(
        "35_class_entry",
        fence("class Adder:\n    def add(self, a, b):\n        return a + b\n"),
        entry_point="Adder",
    ),
    Shape(
        "35_nested_def_of_the_name_is_no_definition",
        fence("def outer():\n    def add(a, b):\n        return a + b\n    return add\n"),
        "no_entry_point",
    ),
    Shape("35_two_definitions_the_last_counts", fence(WRONG + "\n" + GOOD)),
    Shape("36_refusal", "I'm sorry, but I can't help with that request.", "refusal"),
    Shape("36_empty", "", "empty"),
    Shape("36_null", None, "empty"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape(shape: Shape) -> None:
    shape.check()


def test_every_numbered_shape_is_covered() -> None:
    assert {int(shape.name[:2]) for shape in SHAPES} == set(range(1, 37))
