"""docs/options.md says what `pytest --help` says; `python tests/unit/test_options_doc.py` writes it anew."""

from __future__ import annotations

from pathlib import Path

from pytest_ddtree.options import OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def page() -> str:
    """The page as it should be."""
    rows = ["| option | ini key | default | what |", "|---|---|---|---|"]
    for option in OPTIONS:
        value = "" if option.switch else f" {option.metavar}"
        default = "" if option.default is None else f"`{option.default}`"
        about = option.help.replace("|", "\\|")
        flag = f"`{option.flag}{value}`".replace("|", "\\|")
        rows.append(f"| {flag} | `{option.ini}` | {default} | {about} |")
    head = [
        "# Options",
        "",
        "The command line wins over the ini file. Lists are separated by commas; in TOML every value is a string",
        '(`ddtree_budget = "8,16"`), and options that may be given more than once take a list of strings. Paths on the command line take',
        "an equals sign: pytest reads `--option /path` as a test path while it looks for its ini file.",
        "",
    ]
    return "\n".join([*head, *rows]) + "\n"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), (
        f"write it anew: python {Path(__file__).relative_to(PAGE.parents[1])}"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
