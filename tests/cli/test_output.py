"""cli.output: tables, on terminals of all widths and in pipes."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from segstore.cli import consoles, output

SETTINGS = "cleanup.policy=compact,delete compression.type=zstd"
FOLDED: dict[str, tuple[str, int, list[str]]] = {
    "it fits": ("orders", 6, ["orders"]),
    "at blanks": (SETTINGS, 30, ["cleanup.policy=compact,delete", "compression.type=zstd"]),
    "behind a comma": (SETTINGS, 25, ["cleanup.policy=compact,", "delete", "compression.type=zstd"]),
    "behind a dot": ("payments.orders.eu", 10, ["payments.", "orders.eu"]),
    "behind a hyphen": ("payments-orders", 10, ["payments-", "orders"]),
    "anywhere": ("abcdefgh", 3, ["abc", "def", "gh"]),
    "nothing": ("", 5, [""]),
    "no room": ("ab", 0, ["a", "b"]),
}


@pytest.mark.parametrize("name", FOLDED)
def test_where_a_text_is_broken(name: str) -> None:
    text, width, lines = FOLDED[name]
    assert consoles.folded(text, width) == lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.kind("programs")
def test_no_name_is_cut_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    made = output.table("topic", "partitions", "settings", right=("partitions",))
    output.add_row(made, "payments.of.the.north.and.of.the.south", 12, SETTINGS)
    shown = io.StringIO()
    Console(file=shown, width=60, highlight=False).print(made)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert max(map(len, lines)) <= 60
    words = [word for line in lines[3:] for word in line.split()]
    assert len(lines) > 5  # one row, which is broken
    ends = ("12", "south", "compact,delete", "compression.type=zstd", "zstd", *"=.,_-")
    assert all(word.endswith(ends) for word in words), words
    assert not {"elete", "lete", "outh"} & {*words}


RATES: dict[str, tuple[int, float, str]] = {
    "a line that was typed": (1, 4.0, "1 record, 5 bytes in 4.00 s"),
    "few records": (999, 4.0, "999 records, 5 bytes in 4.00 s"),
    "a short time": (5000, 0.99, "5,000 records, 5 bytes in 0.99 s"),
    "a measurement": (5000, 2.0, "5,000 records, 5 bytes in 2.00 s: 2,500 records/s, 2 bytes/s"),
}


@pytest.mark.parametrize(("records", "seconds", "told"), RATES.values(), ids=RATES)
def test_a_rate_is_told_if_it_is_one(records: int, seconds: float, told: str) -> None:
    assert output.rate_text(records, 5, seconds) == told


def test_a_table_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    made = output.table("topic", "partitions", "settings", right=("partitions",))
    output.add_row(made, "t", 1, "")
    output.add_row(made, "orders", 1000, SETTINGS * 5)
    output.console().print(made)
    told = capsys.readouterr().out
    assert told.splitlines() == [
        "topic   partitions  settings",
        "t                1",
        f"orders       1,000  {SETTINGS * 5}",
    ]
