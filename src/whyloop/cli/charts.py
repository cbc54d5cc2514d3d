"""Charts of a survey as SVG, on one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from html import escape

from whyloop.cli.formats import span_text
from whyloop.replay import Curve, Row, Survey
from whyloop.replay.tuning import value_text
from whyloop.values.price import dollars
from whyloop.values.text import counted

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 32, 16, 36

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2rem auto; padding: 0 1rem; }
body { color: #1b1f24; }
h2 { margin: 2.5rem 0 .25rem; font-size: 1.15rem; }
p.sentence { margin: .25rem 0 1rem; font-weight: 600; }
svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: #59636e; }
.axis { stroke: #d1d9e0; } .saved { stroke: #0969da; } .lost { stroke: #cf222e; stroke-dasharray: 7 4; }
.line { fill: none; stroke-width: 2; } .mark { stroke: #1a7f37; stroke-dasharray: 4 3; }
.knee { stroke: #9a6700; stroke-dasharray: 2 3; }
.key { display: inline-block; width: 2rem; border-top: 2px solid #0969da; vertical-align: middle; }
.key.lost { border-top: 2px dashed #cf222e; margin-left: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: .5rem; }
td, th { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid #eaeef2; }
tr.recommended { background: #dafbe1; }
details { margin-top: .5rem; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; }
  tr.recommended { background: #12361f; } .axis { stroke: #3d444d; } td, th { border-color: #2a3038; } }
""".strip()


def page_of(found: Survey, curves: Sequence[Curve]) -> str:
    """Return a page with a chart for each limit."""
    runs, sessions = counted(found.runs, "run"), counted(found.sessions, "session")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Limits</title>',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Limits</h1>",
        f"<p>{runs} of {sessions}, {found.completed:,} completed.</p>",
    ]
    for curve in curves:
        parts += [f"<h2>{escape(curve.name)}</h2>", f'<p class="sentence">{escape(curve.sentence)}</p>']
        if curve.rows[0].cut:
            parts += [svg_of(found, curve), _table(curve)]
    return "\n".join([*parts, "</body></html>", ""])


def svg_of(found: Survey, curve: Curve) -> str:
    """Return the chart of one limit: what each value saves, and the completed runs that it cuts."""
    rows = curve.rows
    saved = [curve.share(row, found.used) or 0.0 for row in rows]
    lost = [row.completed / found.completed if found.completed else 0.0 for row in rows]
    ticks = sorted({round(i * (len(rows) - 1) / 6) for i in range(7)})
    lines = [
        f'<p><span class="key"></span> saved {escape(curve.measure)} '
        '<span class="key lost"></span> completed runs that are cut</p>',
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(curve.sentence)}">',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y(share)
        lines.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share * 100:.0f} %</text>')
    for index in ticks:
        text = escape(value_text(curve.name, rows[index].rule.limit))
        lines.append(f'<text x="{_x(index, rows):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{text}</text>')
    for value, style in ((curve.knee, "knee"), (curve.recommended, "mark")):
        for index, row in enumerate(rows):
            if value is not None and row.rule.limit == value:
                x = _x(index, rows)
                name = "knee" if style == "knee" else "recommended"
                lines.append(
                    f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
                    f"<title>{name}: {escape(value_text(curve.name, row.rule.limit))}</title></line>"
                    f'<text x="{x + 4:.1f}" y="{TOP + (14 if style == "knee" else 28)}">{name}</text>'
                )
    for shares, style in ((saved, "saved"), (lost, "lost")):
        points = " ".join(f"{_x(i, rows):.1f},{_y(share):.1f}" for i, share in enumerate(shares))
        lines.append(f'<polyline class="line {style}" points="{points}"/>')
    return "\n".join([*lines, "</svg>"])


def _x(index: int, rows: Sequence[Row]) -> float:
    return LEFT + index / max(1, len(rows) - 1) * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return TOP + (1 - min(1.0, max(0.0, share))) * (HEIGHT - TOP - BOTTOM)


def cells_of(curve: Curve, row: Row) -> tuple[str, ...]:
    """Return the cells of a table: a value of a limit, the runs that it cuts, and its savings."""
    saved = row.saved
    return (
        value_text(curve.name, row.rule.limit),
        f"{row.cut:,}",
        f"{row.completed:,}",
        f"{row.beyond:,}",
        f"{saved.steps:,}",
        f"{saved.tokens:,}",
        span_text(saved.seconds or 0.0),
        _cost(row),
    )


def _cost(row: Row) -> str:
    """Return the cost that a value would have saved, if any of it is known."""
    if row.cut and row.unknown_cost == row.cut:
        return "unknown"
    return dollars(round(row.saved.cost or Decimal(0), 4))


def _table(curve: Curve) -> str:
    heads = ("value", "runs cut", "completed", "beyond", "steps", "tokens", "time", "cost")
    lines = ["<details><summary>All values</summary><table>"]
    lines.append(f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>")
    for row in curve.rows:
        marked = ' class="recommended"' if row.rule.limit == curve.recommended else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in cells_of(curve, row))
        lines.append(f"<tr{marked}>{cells}</tr>")
    return "\n".join([*lines, "</table></details>"])
