"""Line and branch coverage per package, from the JSON that coverage and gcovr have left in a directory.

usage: coverage_table.py DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

KEYS = ("covered_lines", "num_statements", "covered_branches", "num_branches")
NATIVE_KEYS = ("line_covered", "line_total", "branch_covered", "branch_total")


def package(file: str) -> str:
    """`segstore/storage/cleaner/offset_map.py` is of `storage`, `segstore/names.py` of itself."""
    parts = Path(file).parts
    return parts[len(parts) - parts[::-1].index("segstore")]


def rows(directory: Path) -> dict[str, list[int]]:
    """Lines and branches, covered and all, by package; modules beside the packages are one row."""
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 4)
    for file, data in json.loads((directory / "python.json").read_text())["files"].items():
        name = package(file)
        name = "modules beside the packages" if name.endswith(".py") else f"`{name}/`"
        found[name] = [a + data["summary"][key] for a, key in zip(found[name], KEYS, strict=True)]
    result = dict(sorted(found.items()))
    result["all Python"] = [sum(column) for column in zip(*found.values(), strict=True)]
    native = json.loads((directory / "native.json").read_text())
    result["the C"] = [native[key] for key in NATIVE_KEYS]
    return result


def table(directory: Path) -> str:
    lines = ["| part | lines | covered | branches | covered |", "|---|--:|--:|--:|--:|"]
    for name, (line, line_all, branch, branch_all) in rows(directory).items():
        lines.append(
            f"| {name} | {line_all:,} | {line / max(line_all, 1):.1%} "
            f"| {branch_all:,} | {branch / max(branch_all, 1):.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table(Path(sys.argv[1])) + "\n")
