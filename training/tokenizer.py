"""Byte-level BPE tokenizer of the reference model and the files an ordinary checkpoint has beside its weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK, MASK = range(6)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|mask|>")
# The thinking marks stay in decoded text: a reasoning parser splits on them.
VISIBLE = frozenset({"<think>", "</think>"})

# Words with one leading mark or space, single digits, runs of marks with their line ends, line ends with the
# blank space before them, indentation.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set text = message['content'] or '' -%}
{%- if message['role'] == 'assistant' and '</think>' in text -%}
{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train on `texts`; special tokens take ids 0 to 5, and the vocabulary has exactly VOCAB_SIZE entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"tokenizer has {tokenizer.get_vocab_size()} entries, wanted {VOCAB_SIZE}: corpus too small"
        )
    for token_id, token in enumerate(SPECIALS):
        if tokenizer.token_to_id(token) != token_id:
            raise ValueError(
                f"special token {token} has id {tokenizer.token_to_id(token)}, wanted {token_id}"
            )
    return with_visible_marks(tokenizer)


def with_visible_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with the thinking marks kept in decoded text; the trainer makes every token that it is
    given special, so this is set afterwards."""
    raw = json.loads(tokenizer.to_str())
    for entry in raw["added_tokens"]:
        entry["special"] = entry["content"] not in VISIBLE
    return Tokenizer.from_str(json.dumps(raw))


def write_tokenizer_files(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    decoder = {
        str(token_id): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in VISIBLE,
        }
        for token_id, token in enumerate(SPECIALS)
    }
    config = {
        "added_tokens_decoder": decoder,
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[IM_END],
        "mask_token": SPECIALS[MASK],
        "model_max_length": 16384,
        "pad_token": SPECIALS[END_OF_TEXT],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json(
        folder / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [IM_END, END_OF_TEXT],
            "pad_token_id": END_OF_TEXT,
        },
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
