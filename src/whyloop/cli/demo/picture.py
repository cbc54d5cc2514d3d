"""A run as an SVG picture without references to other sites."""

from __future__ import annotations

import io

from rich.console import Console

from whyloop.cli.demo.live_view import WIDEST, LiveView
from whyloop.cli.demo.scenario import Scenario, play

# As Rich's own, but with fonts that are installed instead of one that would be fetched.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
    .{unique_id}-matrix {{
      font-family: "Fira Code", "JetBrains Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
      font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{
      font-family: system-ui, "DejaVu Sans", sans-serif;
      font-size: 18px;
      font-weight: bold;
    }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">{matrix}</g>
  </g>
</svg>
"""


def svg(scenario: Scenario) -> str:
    """Return the scenario as a terminal shows it, the same on every run."""
    console = Console(
        record=True,
        width=WIDEST,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with LiveView(console, live=False) as view:
        view.open(scenario)
        view.close(play(scenario, view))
    title = f"whyloop demo {scenario.name}"
    return console.export_svg(title=title, code_format=_FORMAT, unique_id=f"whyloop-{scenario.name}")
