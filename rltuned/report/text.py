"""The report in a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from rltuned import show
from rltuned.report.report_tables import facts, headline, tables

WIDTH = 150
"""Columns where it does not go to a terminal."""


def show_report(console: Console, report: Mapping[str, Any]) -> None:
    """All but the charts."""
    if not console.is_terminal:
        console.width = WIDTH
    console.print(f"[bold]{show.plain(headline(report))}[/bold]")
    marks = (("against", "−"), ("weak", "?"), ("for", "+"))
    for kind, mark in marks:
        for sentence in report[kind]:
            console.print(f"  {mark} {show.plain(sentence)}")
    if report["weak"]:
        console.print("  Evidence is weak, for the reasons marked with ?.")
    for sentence in report["missing"]:
        console.print(f"  Missing: {show.plain(sentence)}")
    console.print()
    for name, value in facts(report):
        console.print(f"{name:<10}{show.plain(value)}")
    for _, table in tables(report):
        console.print()
        numbers = [column for column in table.columns[1:] if column not in table.text]
        console.print(show.table(table.title, table.columns, table.rows, right=numbers))
        if table.note:
            console.print(f"[dim]{show.plain(table.note)}[/dim]")
