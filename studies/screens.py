"""``python -m studies.screens``: pictures of what an admin sees, taken of the cluster of ``make testbed``.

Writes docs/images/screens.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
TESTBED: Final = ROOT / "docker-slurm-testbed" / "testbed"
OUT: Final = ROOT / "docs" / "images" / "screens"
COLUMNS: Final = 110
LINES: Final = 32

# Rich's own frame loads a font from elsewhere: a page of ours loads nothing.
FRAME: Final = """\
<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font: {char_height}px monospace; line-height: {line_height}px }}
{styles}</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" rx="8" fill="#292929"/>
<g transform="translate(9, 9)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def terminal(name: str, *words: str) -> None:
    """A picture of the first lines of what a command prints on the controller."""
    colours = ["env", "FORCE_COLOR=1", f"COLUMNS={COLUMNS}", "TERM=xterm-256color"]
    asked = [str(TESTBED), "exec", "--user", "rltuned", *colours, *words]
    said = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.splitlines()
    more = [f"… {len(said) - LINES} more lines"] if len(said) > LINES else []
    with Path("/dev/null").open("w") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi("\n".join([f"$ {' '.join(words)}", *said[:LINES], *more])))
    picture = console.export_svg(code_format=FRAME, unique_id=name)
    # Rich counts the title of its own frame, not the margin of this one.
    picture = re.sub(r'(viewBox="0 0 \S+ )(\S+)"', lambda at: f'{at[1]}{float(at[2]) + 20.0:g}"', picture, count=1)
    (OUT / f"{name}.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


def main() -> None:
    """Takes all pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    terminal("doctor", "rltuned", "doctor")
    terminal("plan", "rltuned", "plan")


if __name__ == "__main__":
    main()
