"""The README's part between two comments, made from the JSON in results/: `python -m benchmarks.readme`.

On disk: replaces README.md. Threads: one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from segstore.bench import Results, load
from segstore.bench.terminal import machine_text

from .peers import report

ROOT = Path(__file__).parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"
PEERS, RATIOS = "peers", "ratios"


def results(directory: Path) -> dict[str, Results]:
    """All that a run has left there, by name, in the order of the alphabet."""
    found = [load(path) for path in sorted(directory.glob("*.json"))]
    return {one.name: one for one in found}


def rendered(found: dict[str, Results]) -> str:
    """Where it was measured, peers side by side, and what the other measurements say to what people claim."""
    parts = []
    if peers := found.get(PEERS):
        parts += [f"Measured by `make bench` on {machine_text(peers)}.\n", report.markdown(peers)]
    others = [one for name, one in found.items() if name not in (PEERS, RATIOS) and one.findings]
    if others:
        parts.append("\n".join(["| claim | measured here |", "| :-- | :-- |", *_claims(others)]) + "\n")
    return "\n".join(parts)


def _claims(others: list[Results]) -> list[str]:
    said = [(finding.claim, finding.answer) for one in others for finding in one.findings]
    return [f"| {_cell(claim)} | {_cell(answer)} |" for claim, answer in said]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def placed(text: str, part: str) -> str:
    """`text` with `part` between the comments. ValueError where it has not both, once."""
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or BEGIN in old:
        raise ValueError(f"the README must have {BEGIN.strip()} and {END.strip()} once each, in this order")
    return f"{before}{BEGIN}{part}{END}{after}"


def update(readme: Path = README, directory: Path = RESULTS) -> None:
    readme.write_text(
        placed(readme.read_text(encoding="utf-8"), rendered(results(directory))), encoding="utf-8"
    )


if __name__ == "__main__":
    update(directory=Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
