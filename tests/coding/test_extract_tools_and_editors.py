"""Shapes of tool calls, notebooks, editors and tags that break off."""

from __future__ import annotations

import pytest
from answer_samples import GOOD, WRONG, Shape, fence

DRAFT = fence(WRONG)
FINAL = fence(GOOD)
CALL = '<tool_call>\n{"name": "run", "arguments": {"code": "def add(a, b): return a - b"}}\n</tool_call>\n'

SHAPES = [
    Shape("tool_call_before", CALL + FINAL),
    Shape("tool_call_behind", FINAL + CALL),
    Shape("raw_code_in_a_tool_call", f"<tool_call>\n{WRONG}</tool_call>\n{FINAL}"),
    Shape("fence_in_a_tool_call_behind_the_answer", f"{FINAL}Let me run it.\n<tool_call>\n{DRAFT}</tool_call>\n"),
    Shape("nothing_but_a_tool_call", f"<tool_call>\n{DRAFT}</tool_call>\n", "empty"),
    Shape("tool_call_that_never_ends", f"{FINAL}<tool_call>\n{DRAFT}"),
    Shape("function_calls", f"<function_calls>\n{DRAFT}</function_calls>\n{FINAL}"),
    Shape("calls_of_another_spelling", f"{FINAL}<｜tool▁calls▁begin｜>{DRAFT}<｜tool▁calls▁end｜>"),
    Shape("tool_call_in_thinking", f"<think>\n<tool_call>\n{DRAFT}</tool_call>\nok\n</think>\n{FINAL}"),
    Shape("tool_call_in_unclosed_thinking", f"<think>\n<tool_call>\n{DRAFT}</tool_call>\n{FINAL}", "unclosed_thinking"),
    Shape("tool_call_named_in_prose", f"The model emits <tool_call> markup.\n{FINAL}"),
    Shape("tool_call_named_in_code", fence('MARK = "<tool_call>"\n' + GOOD)),
    Shape("tool_call_shown_in_a_block", fence("<tool_call>{}</tool_call>", "xml") + FINAL),
    Shape("closing_tag_breaks_off", f"{DRAFT}Hmm, so that is it.\n</think", "unclosed_thinking"),
    Shape("closing_tag_breaks_off_early", f"{FINAL}\n</thi", "unclosed_thinking"),
    Shape("closing_tag_breaks_off_in_code", "```python\n" + GOOD + "# </think"),
    Shape("a_tag_that_breaks_off_and_is_none", f"{FINAL}\n</th"),
    Shape("broken_closer_after_a_whole_one", f"<think>\n{DRAFT}</think>\n{FINAL}</think"),
    Shape("notebook_before", '{"cells": [{"source": ["def add(a, b):\\n", "    return a - b\\n"]}]}\n' + FINAL),
    Shape("notebook_behind", FINAL + fence('{"cells": [{"source": ["def add(a, b): return 0"]}]}', "json")),
    Shape("diff_behind", FINAL + fence("-def add(a, b):\n+def add(a, b):\n+    return a + b", "diff")),
    Shape("diff_alone", fence("+def add(a, b):\n+    return a + b", "diff"), "no_code"),
    Shape("session_behind", FINAL + fence(">>> def add(a, b):\n...     return a - b")),
    Shape("session_behind_untagged", FINAL + fence(">>> add(1, 2)\n3", "")),
    Shape("another_language_behind", FINAL + "In JavaScript:\n" + fence("function add(a, b) { return a - b }", "js")),
    Shape("another_language_around", fence("int add(int a, int b);", "c") + FINAL + fence("fn add() {}", "rust")),
    Shape("skeleton_behind", FINAL + "The stub was\n" + fence('def add(a, b):\n    """Sum."""')),
    Shape("usage_that_imports_the_answer", FINAL + fence("from solution import add\nprint(add(1, 2))")),
    Shape("zero_width_space_before_fences", f"\u200b```python\n{GOOD}\u200b```\n"),
    Shape("byte_order_marks", f"\ufeff```python\n\ufeff{GOOD}```\n"),
    Shape("tab_in_a_list", "-\t```python\n\tdef add(a, b):\n\t    return a + b\n\t```\n"),
    Shape("lone_surrogate", "\ud800 " + FINAL),
    Shape("line_separators", FINAL.replace("\n", "\u2028")),
    Shape("listing_of_latex", f"\\begin{{lstlisting}}[language=Python]\n{GOOD}\\end{{lstlisting}}\n"),
    Shape("pre_and_code", f'<pre><code class="language-python">\n{GOOD}</code></pre>'),
    Shape("attributes_of_other_editors", fence(GOOD, "{.python .numberLines}")),
    Shape("details_before", f"<details><summary>Draft</summary>\n\n{DRAFT}\n</details>\n\n{FINAL}"),
    Shape("another_turn_behind", f"{FINAL}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n{DRAFT}"),
    Shape("commentary_behind_the_final_message",
          f"<|channel|>final<|message|>{FINAL}<|end|><|start|>assistant<|channel|>commentary<|message|>{DRAFT}<|end|>"),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shape(shape: Shape) -> None:
    shape.check()
