"""More shapes than the collected ones: what else a model, a template or a server can do to an answer."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from answer_samples import GOOD, WRONG, Shape, fence

from pytest_ddtree.coding import extract

DRAFT = fence(WRONG)
FINAL = fence(GOOD)
QUOTED = "".join(f"> {line}\n" for line in FINAL.splitlines())
OPEN = {"thinking_open": True}
STUB = "def add(a, b):\n    ...\n"

THINKING = [
    Shape("empty_think_pair_of_disabled_thinking", f"<think>\n\n</think>\n\n{FINAL}"),
    Shape("think_pair_html_escaped", f"&lt;think&gt;\n{DRAFT}&lt;/think&gt;\n{FINAL}"),
    Shape("role_header_before_think", f"<|im_start|>assistant\n<think>\n{DRAFT}</think>\n{FINAL}<|im_end|>"),
    Shape("prose_before_think", f"Sure, one moment.\n<think>\n{DRAFT}</think>\n{FINAL}"),
    Shape("closer_glued_to_text", f"<think>hmm\n{DRAFT}done.</think>Here:\n{FINAL}"),
    Shape("closer_glued_to_fence", f"<think>hmm\n{DRAFT}</think>{FINAL}"),
    Shape("closer_in_the_middle_of_a_line", f"Plan.\n{DRAFT}ok so we are done </think> Here it is:\n{FINAL}"),
    Shape(
        "closer_mentioned_without_quotes",
        f"<think>\nI close with </think> and then answer.\n{DRAFT}\n</think>\n{FINAL}",
    ),
    Shape(
        "closer_mentioned_without_quotes_answer_missing",
        f"<think>\nI close with </think> and then answer.\n{DRAFT}\n</think>\nI could not find a solution.",
        "no_code",
    ),
    Shape(
        "mention_of_the_tags_after_the_answer",
        f"<think>\nx\n</think>\n{FINAL}It drops all up to </think> in the text.",
    ),
    Shape("mention_of_the_pair_in_prose", f"It strips <think>...</think> pairs.\n{FINAL}"),
    Shape("mention_of_the_pair_in_backticks", f"{FINAL}It strips `<think>` and `</think>`.\n"),
    Shape("mention_of_an_opener_in_prose", f"{FINAL}\nIt ignores a <think> tag in the text.\n"),
    Shape(
        "sample_section_in_a_text_block_of_the_answer",
        f"<think>x</think>\n{FINAL}\n```text\n<think>a</think> b\n```\n",
    ),
    Shape(
        "sample_section_in_a_text_block_of_thinking",
        f"<think>\n```text\n<think>a\n</think>\n```\n{DRAFT}</think>\n{FINAL}",
    ),
    Shape("nested_think", f"<think>\n<think>\n{DRAFT}</think>\n{DRAFT}</think>\n{FINAL}"),
    Shape("second_closer_wins_over_the_first", f"a\n</think>\n{DRAFT}b\n</think>\n{FINAL}"),
    Shape(
        "unclosed_think_after_an_interleaved_one",
        f"<think>a</think>\nHm.\n<think>\n{FINAL}",
        "unclosed_thinking",
    ),
    Shape("mismatched_closer", f"<think>\n{DRAFT}</thinking>\n{FINAL}"),
    Shape("other_closer_inside_thinking", f"<think>\n</thought>\n{DRAFT}</think>\n{FINAL}"),
    Shape(
        "thinking_after_a_parser_split_too_early",
        f"is only quoted.\n{DRAFT}\n</think>\n{FINAL}",
        reasoning="a `",
    ),
    Shape("channel_names_of_another_family", f"<|channel>thought\n{DRAFT}<channel|>\n{FINAL}"),
    Shape("start_and_end_thinking_tokens", f"<|START_THINKING|>{DRAFT}<|END_THINKING|>{FINAL}"),
    Shape("begin_and_end_of_thought", f"<|begin_of_thought|>\n{DRAFT}<|end_of_thought|>\n{FINAL}"),
    Shape("answer_tags_around_the_final_answer", f"<think>\n{DRAFT}</think>\n<answer>\n{FINAL}</answer>"),
    Shape("answer_tags_with_bare_code", f"<think>\n{DRAFT}</think>\n<answer>\n{GOOD}</answer>"),
    Shape("thinking_closed_and_nothing_else", "<think>\nhmm\n</think>\n", "empty"),
    Shape("thinking_closed_then_cut", f"<think>\n{FINAL}</think>\n\n", "truncated", finish_reason="length"),
    Shape("thinking_closed_prose_only", f"<think>\n{FINAL}</think>\nDone.", "no_code"),
    Shape(
        "unclosed_think_in_a_docstring_of_the_draft",
        '<think>\n```python\ndef add(a, b):\n    """</think>"""\n',
        "unclosed_thinking",
    ),
    Shape("opener_in_a_string_of_the_answer", fence('OPEN = "<think>"\n' + GOOD)),
    Shape("both_tags_in_the_answer", fence('OPEN, CLOSE = "<think>", "</think>"\n' + GOOD)),
    Shape(
        "both_tags_in_a_multi_line_string_of_the_answer",
        "<think>\nok\n</think>\n" + fence('SAMPLE = """\n<think>\nx\n</think>\n"""\n' + GOOD),
    ),
    Shape(
        "leaked_next_turn",
        f"{FINAL}<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n{DRAFT}",
    ),
    Shape("leaked_turn_that_thinks", f"{FINAL}<|im_end|>\n<|im_start|>assistant\n<think>\n{DRAFT}"),
    Shape("leaked_end_of_text_then_garbage", f"{FINAL}<|endoftext|>{DRAFT}"),
    Shape(
        "special_token_mentioned_in_template_opened_thinking",
        f"I may emit <|im_end|> here.\n{DRAFT}</think>\n{FINAL}",
    ),
    Shape("special_token_in_a_string_of_the_answer", fence('END = "<|im_end|>"\n' + GOOD)),
    Shape("special_token_inside_an_unclosed_block", f"```python\n{GOOD}<|im_end|>"),
    Shape("harmony_marker_in_a_string_of_the_answer", fence('MARK = "<|channel|>final<|message|>"\n' + GOOD)),
    Shape("word_analysis_at_the_start_is_prose", f"analysis of the task: add two numbers.\n{FINAL}"),
]

CUTS = [
    Shape("closed_block_then_prose_cut", f"{FINAL}\nThis function simply", finish_reason="length"),
    Shape(
        "closed_thinking_closed_block_prose_cut",
        f"<think>\nHmm\n</think>\n{FINAL}\nIt",
        finish_reason="length",
    ),
    Shape(
        "second_block_cut_at_the_limit",
        f"{DRAFT}Better:\n```python\ndef add(a",
        "truncated",
        finish_reason="length",
    ),
    Shape("second_block_cut", f"{DRAFT}Better:\n```python\ndef add(a", "truncated_block"),
    Shape(
        "second_block_cut_before_its_definition",
        f"{DRAFT}Better:\n```python\nimport math\n\ndef hel(",
        "truncated_block",
    ),
    Shape("second_block_only_opened", f"{DRAFT}Better:\n```python\n", "truncated_block"),
    Shape("usage_block_cut", f"{FINAL}Usage:\n```python\nprint(add(1,"),
    Shape("output_block_never_closed", f"{FINAL}Output:\n```text\n5"),
    Shape("untagged_output_never_closed", f"{FINAL}Output:\n```\n5"),
    Shape(
        "raw_code_cut_at_the_limit",
        "def add(a, b):\n    total = a + b\n    return total",
        "truncated",
        finish_reason="length",
    ),
    Shape("raw_code_then_prose_cut", f"{GOOD}\nThis function adds", finish_reason="length"),
    Shape("raw_code_cut_without_a_reason", "def add(a, b):\n    total = (a +", "truncated_block"),
    Shape("complete_but_open_block_at_the_limit", f"```python\n{GOOD}", "truncated", finish_reason="length"),
    Shape("complete_but_open_block_at_stop", f"```python\n{GOOD}", finish_reason="stop"),
    Shape("aborted", f"```python\n{WRONG}", "truncated", finish_reason="abort"),
    Shape(
        "template_opened_thinking_cut",
        f"Try:\n{DRAFT}Wait, that subtracts. So",
        "truncated",
        finish_reason="length",
    ),
    Shape(
        "template_opened_thinking_cut_known",
        f"Try:\n{DRAFT}It",
        "truncated",
        finish_reason="length",
        options=OPEN,
    ),
    Shape("template_opened_thinking_stopped_known", f"Try:\n{DRAFT}It", "unclosed_thinking", options=OPEN),
    Shape("template_opened_thinking_closed_known", f"Try:\n{DRAFT}It\n</think>\n{FINAL}", options=OPEN),
    Shape("template_opened_thinking_repeats_its_opener", f"<think>\n{DRAFT}</think>\n{FINAL}", options=OPEN),
    Shape(
        "rest_of_thinking_that_a_parser_left_in_the_content_cut",
        f"` is only a quote.\n{DRAFT}Wait, that subtracts",
        "truncated",
        finish_reason="length",
        reasoning="I will write `",
    ),
    Shape("content_filter", f"```python\n{WRONG}", "truncated", finish_reason="content_filter"),
    Shape("prose_only_cut", "The function should", "truncated", finish_reason="length"),
    Shape("nothing_generated_at_the_limit", "", "truncated", finish_reason="length"),
]

FENCES = [
    Shape("opener_behind_prose", f"Here is the code: ```python\n{GOOD}```\n"),
    Shape("closer_glued_to_the_last_line", f"```python\n{GOOD.rstrip()}```\nDone.\n"),
    Shape(
        "closer_glued_to_the_last_line_and_prose_behind_it",
        f"```python\n{GOOD.rstrip()}``` and so on.\nDone.\n",
    ),
    Shape("closer_with_prose_behind_it", f"```python\n{GOOD}``` This adds.\n"),
    Shape("code_behind_the_tag", "```python def add(a, b):\n    return a + b\n```"),
    Shape("wrapped_in_a_markdown_block", f"```markdown\n# Answer\n\n{FINAL}\nDone.\n```\n"),
    Shape("wrapped_in_a_longer_markdown_block", f"````markdown\nText\n{FINAL}````\n"),
    Shape("untagged_block_in_a_markdown_block", f"````md\n```\n{GOOD}```\n````\n"),
    Shape("in_a_block_quote", QUOTED),
    Shape(
        "in_a_nested_list",
        "- a\n  - b\n\n        ```python\n        def add(a, b):\n            return a + b\n        ```\n",
    ),
    Shape("on_a_list_item_line", "1. ```python\n   def add(a, b):\n       return a + b\n   ```\n"),
    Shape("in_a_list_with_tabs", "1. Do:\n\n    ```python\n\tdef add(a, b):\n\t\treturn a + b\n    ```\n"),
    Shape("body_indented_more_than_the_fence", "```python\n    def add(a, b):\n        return a + b\n```\n"),
    Shape("draft_block_left_open_in_prose", f"Try:\n```python\n{WRONG}\nNo, wrong.\n\n{FINAL}"),
    Shape("closed_with_a_tagged_fence", f"```python\n{GOOD}```python\n"),
    Shape("unknown_tag", f"```solution\n{GOOD}```\n"),
    Shape("ipython_tag", f"```ipython3\n{GOOD}```\n"),
    Shape("text_tag_is_no_code", f"```text\n{GOOD}```\n", "no_code"),
    Shape("javascript_only", "```javascript\nfunction add(a, b) { return a + b }\n```\n", "no_code"),
    Shape("javascript_alternative_after", f"{FINAL}\n```js\nconst add = (a, b) => a + b\n```\n"),
    Shape("tilde_inside_backticks", fence('"""\n~~~\n"""\n' + GOOD)),
    Shape("longer_closer", f"```python\n{GOOD}``````\n"),
    Shape("shorter_fence_does_not_close", f"````python\n'''\n```\n'''\n{GOOD}````\n"),
    Shape("fence_after_bom", f"\ufeff{FINAL}"),
    Shape("zero_width_before_the_fence", f"\u200b```python\n{GOOD}\u200b```\n"),
    Shape("ansi_around_the_fence", f"\x1b[1m```python\x1b[0m\n{GOOD}```\x1b[0m\n"),
    Shape("nbsp_before_the_fence", f"\u00a0```python\n{GOOD}\u00a0```\n"),
    Shape("mixed_line_ends", FINAL.replace("\n", "\r\n", 1) + "after\r"),
    Shape("form_feed_is_no_line_end", fence("X = 'a\x0cb'\n" + GOOD)),
    Shape("two_answers_last_counts", f"{DRAFT}{DRAFT}{FINAL}"),
    Shape("same_answer_twice", f"{FINAL}\nOnce more:\n{FINAL}"),
    Shape(
        "docstring_holds_a_tagged_example",
        fence(
            'def add(a, b):\n    """Use:\n\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b\n'
        ),
    ),
    Shape("markdown_in_a_module_string", fence('HELP = """\n```python\nadd(1, 2)\n```\n"""\n\n' + GOOD)),
    Shape(
        "triple_quote_never_closed_in_a_draft",
        f'Try:\n```python\ndef add(a, b):\n    """oops\n```\nBetter:\n{FINAL}',
    ),
    Shape(
        "triple_quote_never_closed_draft_left_open",
        f'Try:\n```python\ndef add(a, b):\n    """oops\n\n{FINAL}',
    ),
    Shape("empty_blocks_around", f"```python\n```\n{FINAL}```\n```\n"),
    Shape("pre_code_html", f'<pre><code class="language-python">{GOOD.replace("+", "&#43;")}</code></pre>'),
    Shape("python_brackets", f"[PYTHON]\n{GOOD}[/PYTHON]\n"),
    Shape("solution_tags", f"<solution>\n{GOOD}</solution>\n"),
    Shape("inline_code_tag_is_no_answer", f"The name <code>add</code> is used.\n{FINAL}"),
    Shape("language_name_left_of_a_cut_fence", f"python\n{GOOD}```\n"),
    Shape("double_inline", "Either ```add = None``` or better ```python add = lambda a, b: a + b```."),
]

CODE = [
    Shape("stub_after_the_solution", f"{FINAL}\nSignature:\n{fence(STUB)}"),
    Shape("only_a_stub", fence(STUB), code=STUB),
    Shape(
        "helper_of_a_helper",
        fence("ONE = 1\ndef one():\n    return ONE")
        + fence("def plus(a, b):\n    return a + b * one()")
        + fence("def add(a, b):\n    return plus(a, b)"),
    ),
    Shape(
        "import_in_an_earlier_block",
        fence("import operator") + fence("def add(a, b):\n    return operator.add(a, b)"),
    ),
    Shape(
        "helper_in_a_draft_block",
        fence("def plus(a, b):\n    return a + b\n\n" + WRONG)
        + fence("def add(a, b):\n    return plus(a, b)"),
    ),
    Shape(
        "helper_after_future_import",
        fence("def plus(a, b):\n    return a + b")
        + fence("from __future__ import annotations\n\ndef add(a: X, b: X) -> X:\n    return plus(a, b)"),
    ),
    Shape(
        "decorated_again_in_a_later_block",
        f"{FINAL}Cached:\n" + fence("from functools import cache\n\nadd = cache(add)"),
    ),
    Shape("self_contained_answer_takes_nothing", fence("K = 1/0\n\n" + WRONG) + FINAL, code=GOOD),
    Shape("print_at_module_level", fence(GOOD + "\nif False:\n    print(add(1, 2))\n")),
    Shape("annotated_lambda", fence("from typing import Callable\n\nadd: Callable = lambda a, b: a + b\n")),
    Shape("stdlib_import_as_the_answer", "```python\nfrom operator import add\n```\n"),
    Shape(
        "partial_as_the_answer",
        fence("import operator\nfrom functools import partial\n\nadd = partial(operator.add)\n"),
    ),
    Shape(
        "defined_in_with",
        fence(
            "import contextlib\nwith contextlib.suppress(ImportError):\n    import missing_module\n\n" + GOOD
        ),
    ),
    Shape(
        "defined_in_else",
        fence(
            "try:\n    add = undefined_name\nexcept NameError:\n    def add(a, b):\n        return a + b\n"
        ),
    ),
    Shape(
        "defined_only_in_the_main_guard",
        fence("if __name__ == '__main__':\n    add = max\n"),
        "no_entry_point",
    ),
    Shape("attribute_is_no_definition", fence("class A: pass\nA.add = 1\n"), "no_entry_point"),
    Shape("other_name", fence("def plus(a, b):\n    return a + b\n"), "no_entry_point"),
    Shape("test_of_that_name_only", fence("def test_add():\n    assert add(1, 2) == 3\n"), "no_entry_point"),
    Shape("broken_code", fence("def add(a, b)\n    return a + b\n"), "syntax_error"),
    Shape(
        "broken_answer_valid_usage",
        fence("def add(a, b)\n    return a + b\n") + fence("print(add(1, 2))"),
        "syntax_error",
    ),
    Shape("later_broken_block_does_not_displace_the_answer", FINAL + fence("def add(a, b) -> :\n")),
    Shape("python_2", fence("def add(a, b):\n    print 'x'\n    return a + b\n"), "syntax_error"),
    Shape("unicode_identifiers", fence("def add(größe, b):\n    return größe + b\n")),
    Shape("nul_byte", "```python\ndef add(a, b):\n    return '\0'\n```", "syntax_error"),
    Shape("lone_surrogate", "```python\nX = '\ud800'\ndef add(a, b):\n    return a + b\n```", "syntax_error"),
    Shape(
        "deep_brackets", fence("def add(a, b):\n    return " + "(" * 300 + "a" + ")" * 300), "syntax_error"
    ),
    Shape("deep_unary", fence("def add(a, b):\n    return " + "-" * 100_000 + "a"), "syntax_error"),
    Shape("deep_attribute_chain", fence("def add(a, b):\n    return a" + ".b" * 20_000), "syntax_error"),
    Shape("invalid_escape_warns_nobody", fence("import re\nPATTERN = '\\d+\\w'\n" + GOOD)),
    Shape(
        "html_names_that_are_real", fence("def add(a, b):\n    lt = 1\n    x = a &lt; b\n    return a + b\n")
    ),
    Shape(
        "entities_in_strings_stay",
        fence("TABLE = {'<': '&lt;'}\n" + GOOD),
        code="TABLE = {'<': '&lt;'}\n" + GOOD,
    ),
    Shape("smart_quotes_in_strings_stay", fence("S = '“x”'\n" + GOOD), code="S = '“x”'\n" + GOOD),
    Shape("nbsp_in_strings_stays", fence("S = 'a\u00a0b'\n" + GOOD), code="S = 'a\u00a0b'\n" + GOOD),
    Shape("form_of_the_code_is_kept", fence("\n\n" + GOOD + "\n\n"), code=GOOD),
    Shape("oversized_block", fence("X = [\n" + "1,\n" * 60_000 + "]\n" + GOOD), "syntax_error"),
    Shape("bullets_then_raw_code", f"* first\n* second\n\nimport math\n\n{GOOD}\nNote that it adds.\n"),
    Shape(
        "raw_code_with_decorator_and_helper",
        f"Answer:\n\nfrom functools import cache\n\n@cache\n{GOOD}\n\nEnjoy!\n",
    ),
    Shape("raw_code_indented_as_markdown", "Answer:\n\n    def add(a, b):\n        return a + b\n\nEnjoy!\n"),
    Shape("raw_draft_then_raw_answer", f"First:\n\n{WRONG}\nThat subtracts.\n\n{GOOD}\n"),
    Shape("raw_code_followed_by_a_bad_call", f"{GOOD}\nprint(add(1, 2)\n\nDone."),
    Shape(
        "prose_with_python_words", "import duties rise if the from clause is met: for while class.", "no_code"
    ),
    Shape("refusal_in_other_words", "I cannot provide code for this.", "refusal"),
    Shape("apology_with_code_is_an_answer", f"I'm sorry for the confusion. Fixed:\n{FINAL}"),
    Shape("prose_only", "Add both numbers and return the sum.", "no_code"),
    Shape("white_space_and_zero_width_only", " \n\u200b\ufeff\u00a0", "empty"),
    Shape("special_tokens_only", "<|im_end|>", "empty"),
    Shape(
        "no_entry_point_asked_last_definition",
        fence("def f():\n    return 1\n") + fence("print(f())"),
        entry_point=None,
        code="def f():\n    return 1\n",
    ),
    Shape(
        "no_entry_point_asked_tests_are_not_it",
        fence("def f():\n    return 1\n") + fence("def test_f():\n    assert f() == 1"),
        entry_point=None,
        code="def f():\n    return 1\n",
    ),
    Shape("no_entry_point_asked_script", "Run:\n" + fence("print(1)"), entry_point=None, code="print(1)\n"),
    Shape("no_entry_point_asked_values_are_not_code", "It is\n```\n42\n```\n", "no_code", entry_point=None),
]

READS = "n = int(input())\nprint(n * 2)\n"
STDIN = [
    Shape("program", fence(READS), code=READS),
    Shape("program_then_sample_output", fence(READS) + "Output:\n```\n84\n```\n", code=READS),
    Shape("program_then_demonstration", fence(READS) + fence("print(21 * 2)"), code=READS),
    Shape("draft_then_program", fence("n = int(input())\nprint(n)\n") + fence(READS), code=READS),
    Shape("helper_then_program", fence("def twice(n):\n    return 2 * n") + fence("print(twice(int(input())))")),
    Shape("open_zero", fence("print(len(open(0).read()))")),
    Shape("sys_stdin", fence("import sys\nfor line in sys.stdin:\n    print(line)")),
    Shape("prints_only", fence("print(1)")),
    Shape("function_only", fence("def f(n):\n    return n"), "no_entry_point"),
    Shape("raw_program", f"Here it is.\n\n{READS}\nThat is all.", code=READS),
    Shape("program_cut", "```python\nn = int(input())\nprint(n *", "truncated_block"),
    Shape("program_in_unclosed_think", f"<think>\n{fence(READS)}", "unclosed_thinking"),
]  # fmt: skip


@pytest.mark.parametrize("shape", [*THINKING, *CUTS, *FENCES, *CODE], ids=lambda shape: shape.name)
def test_shape(shape: Shape) -> None:
    shape.check()


@pytest.mark.parametrize("shape", STDIN, ids=lambda shape: shape.name)
def test_program_for_standard_input(shape: Shape) -> None:
    replace(shape, entry_point=None, options={"stdin": True}).check()


def test_warning_filters_are_left_alone_by_threads() -> None:
    before = list(warnings.filters)
    response = fence("import re\nPATTERN = '\\d'\n" + GOOD)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: extract(response, entry_point="add").status, range(200)))
    assert set(found) == {"ok"}
    assert list(warnings.filters) == before
