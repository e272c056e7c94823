"""The demonstration of flow as a picture: the terminal view of the present moment as SVG."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from penstock.cli.demo_view import view
from penstock.sim.show import Show

WIDTH: Final = 100
HEIGHT: Final = 32
BACKGROUND: Final = (22, 26, 31)
FOREGROUND: Final = (213, 217, 222)

# The fonts of the machine that shows it: a picture that is loaded as an image may fetch nothing.
TEMPLATE: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<!-- made by `penstock demo flow` with its option svg -->
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px;
line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 16px; font-family: system-ui, sans-serif; }}
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
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""

_THEME: Final = TerminalTheme(BACKGROUND, FOREGROUND, [FOREGROUND] * 8)


def picture(show: Show) -> str:
    """The view at 100 by 32 as the text of an SVG file."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(view(show, WIDTH, HEIGHT))
    return console.export_svg(
        title="penstock demo flow", theme=_THEME, code_format=TEMPLATE, unique_id="penstock-demo"
    )
