"""What pages say of the JSON in results/: parts of docs/benchmarks.md and docs/serve.md, each between two
comments, and results/README.md.

`python -m benchmarks.result_pages` makes all anew. On disk: replaces them. Threads: one.
"""

from __future__ import annotations

from pathlib import Path

from segstore.bench import Results, load
from segstore.bench.terminal import machine_text

from .peers import report
from .serve import report as serving

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PEERS_PAGE, SERVE_PAGE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "serve.md"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"
PEERS, SERVE = "peers", "serve"


def results(directory: Path) -> dict[str, Results]:
    """All that a run has left there, by name, in the order of the alphabet."""
    found = [load(path) for path in sorted(directory.glob("*.json"))]
    return {one.name: one for one in found}


def rendered(found: dict[str, Results]) -> str:
    """For docs/benchmarks.md: where it was measured, and peers side by side."""
    if PEERS not in found:
        return ""
    return f"{_where(found[PEERS], 'make bench')}\n\n{report.markdown(found[PEERS])}"


def served(found: dict[str, Results]) -> str:
    """For docs/serve.md: the server beside a broker."""
    if SERVE not in found:
        return "No figures have been taken yet: `make bench-serve` takes them.\n"
    return f"{_where(found[SERVE], 'make bench-serve')}\n\n{serving.markdown(found[SERVE])}"


def _where(results: Results, command: str) -> str:
    load = f"with a load of {results.machine['load']:g} by other processes at the start"
    return f"Measured by `{command}` on {machine_text(results)}, {load}."


def overview(found: dict[str, Results], directory: Path) -> str:
    """For results/README.md: of each measurement its question, its pictures there and its findings."""
    parts = ["# Results of `make bench`\n", "`docs/benchmarks.md` says what is measured, and how.\n"]
    for name, one in found.items():
        parts += [f"## {name}\n", f"{one.question} Measured on {machine_text(one)}.\n"]
        parts += [f"![{path.stem}]({path.name})\n" for path in sorted(directory.glob(f"{name}*.png"))]
        parts += [f"- **{_line(finding.claim)}** {_line(finding.answer)}" for finding in one.findings]
        parts += [""] if one.findings else []
    return "\n".join(parts)


def _line(text: str) -> str:
    return " ".join(text.split())


def placed(text: str, part: str, begin: str = BEGIN, end: str = END) -> str:
    """`text` with `part` between two comments. ValueError where it has not both, once."""
    before, begun, rest = text.partition(begin)
    old, ended, after = rest.partition(end)
    if not begun or not ended or begin in after or begin in old:
        raise ValueError(f"the page must have {begin.strip()} and {end.strip()} once each, in this order")
    return f"{before}{begin}{part}{end}{after}"


def update(peers_page: Path = PEERS_PAGE, directory: Path = RESULTS, serve_page: Path = SERVE_PAGE) -> None:
    found = results(directory)
    for page, part in ((peers_page, rendered(found)), (serve_page, served(found))):
        page.write_text(placed(page.read_text(encoding="utf-8"), part), encoding="utf-8")
    (directory / "README.md").write_text(overview(found, directory), encoding="utf-8")


if __name__ == "__main__":
    update()
