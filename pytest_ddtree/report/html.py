"""One HTML file that holds everything: no script, no font, no picture from elsewhere, and nothing in it that was not escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pytest_ddtree.report.findings import Finding, Report, calm, findings
from pytest_ddtree.report.rows import GATE_HEAD, HEAD, cell_rows, condition_rows, gate_rows, verdict_rows
from pytest_ddtree.report.threeway import FLAT_HEAD, flat_rows

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #d8dee4;vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;white-space:nowrap}
.failure,.error,.regressed,.CORRUPT,.UNKNOWN{color:#b3261e;font-weight:600}.warning,.undecided{color:#8a5a00}
.fine,.exact,.tie{color:#1a7f37}.bar{background:#0969da;height:.6rem;display:inline-block}
li{margin:.4rem 0}.scroll{overflow-x:auto}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}
.failure,.error,.regressed,.CORRUPT,.UNKNOWN{color:#ff7b72}.warning,.undecided{color:#d29922}.fine,.exact,.tie{color:#3fb950}}
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """The whole page."""
    found = findings(report.results)
    body = [
        f"<h1>ddtree {escape(report.run or 'results')}</h1>",
        _findings(found, calm(report.results)),
        _section("Exactness", ("config", "verdict", "judged"), verdict_rows(report.results), marked=1),
        _section("Figures", HEAD, cell_rows(report.results), numbers=[1, 2, *range(4, len(HEAD))]),
        _section(
            "Best baseline, chain and tree",
            FLAT_HEAD,
            list(flat_rows(report.results)),
            numbers=(1, 2, 3, 4, 5, 7, 8, 9),
        ),
        _speedups(report),
        _gates(report),
        _coding(report),
        _section("Conditions", ("what", "value"), condition_rows(report)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width"><title>ddtree results</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _findings(found: Sequence[Finding], otherwise: str) -> str:
    if not found:
        return f'<p class="fine">{escape(otherwise[:1].upper() + otherwise[1:])}.</p>'
    items = "".join(
        f'<li class="{one.weight}"><strong>{escape(one.title)}</strong>: {escape(one.text)}</li>'
        for one in found
    )
    return f"<h2>To look at</h2><ul>{items}</ul>"


def _section(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    marked: int | None = None,
) -> str:
    """A table with a heading, nothing without rows; the words of the column `marked` get their colour."""
    if not rows:
        return ""

    def cell(tag: str, index: int, text: str) -> str:
        classes = ["n"] if index in numbers else []
        if tag == "td" and index == marked and text.isalpha():
            classes.append(text)
        attribute = f' class="{" ".join(classes)}"' if classes else ""
        return f"<{tag}{attribute}>{escape(text)}</{tag}>"

    top = "".join(cell("th", index, text) for index, text in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td", index, text) for index, text in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _speedups(report: Report) -> str:
    """Bars of tok/s over the baseline; the longest one fills the column."""
    results = report.results
    speedups = []
    for config, key in results.cells:
        found = results.speedup(config, key)
        if found is not None:
            speedups.append((f"{config} {key.id}", found.value))
    if not speedups:
        return ""
    most = max(value for _, value in speedups)
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{value:.2f}x</td>'
        f'<td style="width:60%"><span class="bar" style="width:{100 * value / most:.1f}%"></span></td></tr>\n'
        for name, value in speedups
    )
    return f"<h2>Speedup over the baseline</h2><table><tbody>\n{rows}</tbody></table>"


def _gates(report: Report) -> str:
    return _section("Gates", GATE_HEAD, gate_rows(report.results), marked=0)


def _coding(report: Report) -> str:
    head = ("coding", "solved", "baseline", "identical", "lost to rounding", "corrupt", "comparison")
    rows = [
        (
            one.config,
            f"{one.passed}/{one.answers}",
            f"{one.baseline_passed}/{one.answers}",
            str(one.identical),
            str(one.lost_to_rounding),
            str(one.corrupt),
            "; ".join([one.comparison, *one.notes]),
        )
        for one in report.results.coding.values()
    ]
    return _section("Coding eval", head, rows)
