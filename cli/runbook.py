"""`tas runbook`: when an alert fires and what to do, for whoever has the alert and no page on the network."""

import re
from difflib import get_close_matches

import click

from cli.files import FOLDERS
from cli.output import echo

ROW = re.compile(r'^\| <a id="(?P<alert>Tas\w+)"></a>`\w+` \| (?P<fires>\S.*) \| (?P<act>\S.*) \|$', re.MULTILINE)
"""A row of the table of alerts in docs/operations.md."""

LINK = re.compile(r"\[([^][]{1,200})\]\((?P<page>[\w./-]{1,100}\.md)?(?P<anchor>#[\w-]{1,100})?[^()]{0,200}\)")


@click.command("runbook")
@click.argument("alert", required=False)
def runbook(*, alert: str | None) -> None:
    """Say when ALERT fires and what to do, or list all alerts.

    The text is that of docs/operations.md in this version.
    """
    page = next(folder for name, folder in FOLDERS.items() if name.name == "docs") / "operations.md"
    rows = {row["alert"]: row for row in ROW.finditer(page.read_text(encoding="utf-8"))}
    if alert is None:
        for name in rows:
            echo(name)
        return
    if alert not in rows:
        close = get_close_matches(alert, rows, n=1)
        hint = f"; did you mean {close[0]}?" if close else "; tas runbook lists them"
        raise click.BadParameter(f"no alert of this version: {alert!r}{hint}", param_hint="ALERT")
    echo(f"{alert}\n\nfires if: {_plain(rows[alert]['fires'])}\n\ndo: {_plain(rows[alert]['act'])}")


def _plain(cell: str) -> str:
    """The text of a cell without the marks of a page: a link keeps the page and the section that it names."""
    text = LINK.sub(lambda link: f"{link[1]}{_target(link)}", cell)
    return re.sub(r"\*\*|(?<!\\)`", "", text).replace("\\|", "|")


def _target(link: re.Match[str]) -> str:
    """What follows the text of a link: the command for another alert, else the page with its section."""
    page, anchor = link["page"], link["anchor"] or ""
    if not page and not anchor:
        return ""
    if not page and anchor.startswith("#Tas"):
        return f" (tas runbook {anchor[1:]})"
    return f" (docs/{page or 'operations.md'}{anchor})"
