"""Pages agree with the tree: links have targets, blocks are valid, commands and names exist.

The effect of a block has its own tests (`tests/contract/bus/test_docs.py`, `test_tls.py`, ...). Here each block is only
read: YAML by the reader of manifests, shell by bash, and `tas ...` by the command line.
"""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path

import click
import pytest

from bus.buckets import ALL
from cli import COMMANDS, cli
from cli.loading import every_setting
from cli.policy import check
from cli.policy_lint import lint
from workers.process.manifests import read_yaml
from workers.settings import flag, variable

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "deploy", "examples", "tests") for page in ROOT.glob(f"{folder}/**/*.md")),
    ]
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
"""A block: its indent, its language, its lines."""


def found_blocks(page: Path, languages: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The line number and the text of each block in one of these languages, without the indent that a list gives it."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found[2] in languages:
            lines = (line.removeprefix(found[1]) for line in found[3].splitlines())
            yield text[: found.start()].count("\n") + 1, "\n".join(lines)


def blocks(*languages: str) -> list[pytest.ParameterSet]:
    """Each block in one of these languages."""
    return [
        pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")
        for page in PAGES
        for number, text in found_blocks(page, languages)
    ]


def by_page(*languages: str) -> dict[Path, list[str]]:
    """The blocks in one of these languages of each page that has some."""
    return {page: texts for page in PAGES if (texts := [text for _, text in found_blocks(page, languages)])}


def prose(page: Path) -> str:
    """A page without its blocks."""
    return FENCE.sub("", page.read_text())


def inline(page: Path) -> list[str]:
    """The texts between backticks on a page."""
    return [" ".join(each.replace("\\|", "|").split()) for each in re.findall(r"`([^`]+)`", prose(page))]


def test_there_are_pages_and_each_block_has_a_known_language() -> None:
    assert {"README.md", "CONTRIBUTING.md"} <= {page.name for page in PAGES}
    assert {language for page in PAGES for _, language, _ in FENCE.findall(page.read_text())} <= LANGUAGES


LANGUAGES = {"", "bash", "console", "json", "mermaid", "python", "sh", "toml", "yaml"}
"""No test here reads a block in another language."""


# Links


def anchors(page: Path) -> set[str]:
    """The possible parts after `#`: headings in the form of the forge, and our own anchors."""
    text = prose(page)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    spelled = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}
    return spelled | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_has_a_target(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_a_link_that_shows_the_name_of_a_page_goes_there() -> None:
    shown = {
        (page, text, link)
        for page in PAGES
        for text, link in re.findall(r"\[([\w./-]+\.md)\]\(([^)\s#]+)", prose(page))
        if not link.startswith("http")
    }
    assert {each for each in shown if Path(each[1]).name != Path(each[2]).name} == set()


@pytest.mark.parametrize("folder", ["bus", "cli", "deploy", "examples", "lab", "tas", "tests", "workers"])
def test_each_page_and_anchor_that_code_names_exists(folder: str) -> None:
    """In a message, a help text or a comment."""
    kinds = (".py", ".yaml", ".txt", ".mjs")
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds and path.is_file()]
    assert files, "the folder has another name"
    for path in files:
        for page, anchor in re.findall(r"(?<![\w/.])(docs/[\w./-]+\.md)(?:#([\w-]+))?", path.read_text()):
            assert (ROOT / page).exists(), f"{path}: {page}"
            assert not anchor or anchor in anchors(ROOT / page), f"{path}: {page}#{anchor}"


def test_each_page_is_one_step_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    links = re.findall(r"\]\(([^)\s#]+)", prose(index))
    linked = {(index.parent / link).resolve() for link in links}
    assert {page for page in PAGES if DOCS in page.parents and "decisions" not in page.parts} - linked == {index}


def test_each_decision_is_in_their_table_with_its_date() -> None:
    folder = DOCS / "decisions"
    rows = re.findall(r"^\| ([\d-]{10}) \| .*?\]\(([\w.-]+\.md)\).* \|$", prose(folder / "README.md"), re.MULTILINE)
    assert [name for _, name in rows] == sorted(page.name for page in folder.glob("*.md") if page.name != "README.md")
    assert all(name.startswith(date) for date, name in rows)


# Kinds

MAX_WORDS = 1500
"""Without its blocks: what a person reads in ten minutes."""

LOOKED_UP = {"operations.md", "background/facts.md", "how-to/troubleshooting.md"}
"""Beside all of `reference/`: tables, or a list by ids."""

MADE = {"reference/commands.md", "reference/settings.md", "reference/agent-options.md"}
"""`test_docs_writes_the_files_and_checks_them` compares them with the code."""


def kind_of(page: Path) -> str:
    """Its path below `docs/`."""
    return str(page.relative_to(DOCS))


READ_THROUGH = [
    page
    for kind in ("start", "how-to", "background", "decisions")
    for page in sorted((DOCS / kind).glob("*.md"))
    if kind_of(page) not in LOOKED_UP
]


def test_each_page_has_a_kind() -> None:
    folders = {"README.md", "operations.md", "start", "how-to", "reference", "background", "decisions"}
    assert {kind_of(page).partition("/")[0] for page in PAGES if DOCS in page.parents} == folders
    assert all((DOCS / page).exists() for page in LOOKED_UP | MADE)


@pytest.mark.parametrize("page", READ_THROUGH, ids=kind_of)
def test_a_page_that_is_read_through_has_at_most_1500_words(page: Path) -> None:
    words = len(prose(page).split())
    assert words <= MAX_WORDS, f"{words} words: move what is looked up to a table in reference/, or split the task"


def test_a_page_that_is_looked_up_has_little_beside_its_tables() -> None:
    looked_up = {*map(kind_of, (DOCS / "reference").glob("*.md"))} - MADE | LOOKED_UP
    beside = {page: len(sentences(DOCS / page)) for page in looked_up}
    assert {page: words for page, words in beside.items() if words > MAX_WORDS} == {}


def sentences(page: Path) -> list[str]:
    """The words of a page that are in no block, no table and no list."""
    lines = prose(page).splitlines()
    return [word for line in lines if not re.match(r" *(\||[-*] |\d+\. | \S)", line) for word in line.split()]


# Blocks


@pytest.mark.parametrize("text", blocks("json"))
def test_json_is_valid(text: str) -> None:
    json.loads(text)


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_is_valid(text: str) -> None:
    tomllib.loads(text)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_is_valid(text: str) -> None:
    compile(text, "page", "exec")


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_is_valid_and_its_policies_have_no_findings(text: str) -> None:
    documents = list(read_yaml(text.encode()))
    assert documents
    if any(isinstance(each, dict) and each.get("kind") == "TASPolicy" for each in documents):
        assert lint("page", text.encode()).findings == ()


@pytest.mark.parametrize("text", blocks("mermaid"))
def test_a_diagram_has_balanced_brackets_and_names_existing_streams(text: str) -> None:
    assert re.match(r"(flowchart (LR|TD)|sequenceDiagram|stateDiagram-v2)\n", text)
    for left, right in ("()", "[]", "{}"):
        assert text.count(left) == text.count(right)
    assert text.count('"') % 2 == 0
    shown = set(re.findall(r"\b[A-Z][A-Z_]+[A-Z]\b", text))
    assert shown - {"API", "HTTP", "NATS", "NODE", "SOURCE", "TAS"} <= {each.name for each in ALL}


# Commands


def typed(text: str) -> Iterator[str]:
    """The commands of a block. In a `console` block they follow `$ `, and go on while a quote or backslash is open."""
    if not re.search(r"^\$ ", text, re.MULTILINE):
        yield text
        return
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\") or not closed(command):
            command += "\n" + next(lines)
        yield command


def closed(command: str) -> bool:
    """Whether no quote is open."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


SHELL = {
    page: [command for block in texts for command in typed(block)]
    for page, texts in by_page("bash", "console", "sh").items()
}
"""The commands of each page in blocks."""

of_each_page = partial(pytest.mark.parametrize, "page", ids=lambda page: str(page.relative_to(ROOT)))
"""One test for each page: there are hundreds of commands, and each takes a millisecond."""


@of_each_page(SHELL)
def test_bash_accepts_each_command(page: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    for command in SHELL[page]:
        done = subprocess.run([bash, "-n"], input=command, text=True, capture_output=True, check=False)
        assert done.returncode == 0, (command, done.stderr)


def calls(command: str) -> Iterator[list[str]]:
    """The arguments of each `tas` in a command."""
    for line in command.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if closed(line) else line.split()
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            words.pop(0)
        end = next((at for at, word in enumerate(words) if word in ("|", ";", "&&", ">")), len(words))
        if words and words[0] in ("tas", ".venv/bin/tas"):
            yield words[1:end]


def accepts(arguments: list[str], *, whole: bool) -> None:
    """Parses `arguments` by the command line, without a run. `whole`: they are a complete command."""
    command: click.Command = cli
    context = click.Context(cli, info_name="tas")
    while isinstance(command, click.Group) and arguments and not is_called(command, arguments):
        if not whole and arguments[0].startswith("-"):  # a flag of all subcommands: the first is sufficient
            arguments = [command.list_commands(context)[0], *arguments]
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"{context.command_path} has no command {name}"
        command, context = found, click.Context(found, parent=context, info_name=name)
    if isinstance(command, click.Group) and not is_called(command, arguments):
        assert not whole, "no command"
        return
    try:
        command.make_context(context.info_name, arguments, parent=context.parent)
    except (click.MissingParameter, click.BadOptionUsage):
        assert not whole, f"{context.command_path} {arguments}: something is missing"


def is_called(group: click.Group, arguments: list[str]) -> bool:
    """Whether these arguments call the group itself: `tas configure -dry-run`."""
    return group.invoke_without_command and (not arguments or arguments[0].startswith("-"))


def called_inline(page: Path) -> list[str]:
    """The commands in the sentences of a page."""
    return sorted({text for text in inline(page) if re.match(r"tas [a-z]", text) and text != "tas COMMAND"})


INLINE = {page: called for page in PAGES if (called := called_inline(page))}


def test_pages_have_commands_in_blocks_and_in_sentences() -> None:
    assert sum(len(list(calls(command))) for commands in SHELL.values() for command in commands) > 90
    assert sum(map(len, INLINE.values())) > 350


@of_each_page(SHELL)
def test_each_command_in_a_block_is_accepted(page: Path) -> None:
    for command in SHELL[page]:
        for arguments in calls(command):
            accepts(arguments, whole=True)


@of_each_page(INLINE)
def test_each_command_in_a_sentence_is_accepted(page: Path) -> None:
    """`a|b` means either; an ellipsis means anything."""
    for text in INLINE[page]:
        words = shlex.split(text.partition(" | ")[0])[1:]
        for chosen in product(*(word.split("|") for word in words if word not in ("…", "--help"))):
            arguments = list(chosen)
            if arguments[:1] == ["run"] and arguments[1:2] in (["NAME"], ["WORKER"], ["<name>"]):
                arguments[1] = "all"
            accepts(arguments, whole=False)


LINTED = {
    "web.yaml": """\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata:
  name: web
  namespace: default
spec:
  strategies:
    dontschedule:
      onStale: hold
      rules:
        - metricname: load1
          operator: GreaterThan
          target: 8
    labelling:
      rules: []
""",
    "batch.yaml": """\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: batch}
spec: {strategies: {dontschedule: {rules: [{metricname: load1, operator: GreaterThan, target: 8}]}}}
---
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: nightly}
spec: {strategies: {dontschedule: {rules: [{metricname: load1, operator: GreaterThan, target: 4}]}}}
""",
}


def test_lint_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-policies"
    folder.mkdir()
    for name, text in LINTED.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert check(("my-policies/",), strict=False, as_json=False) == 1
    printed = capsys.readouterr()
    assert f"{printed.out}{printed.err}```" in (ROOT / "docs" / "how-to" / "check-policies.md").read_text()


# Names


OTHERS = {
    # flags of other programs: nats-server and nats, kubectl, metrics-server, the original TAS, Prometheus,
    # node_exporter, descheduler, kube-scheduler
    "--jetstream",
    "--inbox-prefix",
    "--metric-resolution",
    "--port",
    "--syncPeriod",
    "--kubeConfig",
    "--v",
    "--validate",
    "--collector.textfile.directory",
    "--descheduling-interval",
    "--bind-address",
    "--path.sysfs",
    "--config",
    "--patches",
    "--algorithm-provider",
    "--policy-config-file",
    "--logtostderr",
    "--policy-configmap",
    "--policy-configmap-namespace",
}


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Every flag of a command and of its subcommands."""
    for parameter in command.get_params(context):
        yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below, click.Context(below, parent=context, info_name=name))


@cache
def every_option() -> frozenset[str]:
    return frozenset(options(cli, click.Context(cli, info_name="tas")))


@cache
def sources(*patterns: str) -> str:
    """The text of all files with names that match."""
    return "".join(path.read_text() for pattern in patterns for path in ROOT.glob(pattern))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_and_variables_exist(page: Path) -> None:
    settings = [name for name, _ in every_setting()]
    ours = {flag(name) for name in settings} | every_option() | OTHERS
    named = {text.split()[0].partition("=")[0] for text in inline(page) if text.startswith("--")}
    assert named <= ours
    code = sources("tests/**/*.py", "workers/**/*.py")
    for name in set(re.findall(r"\bTAS_[A-Z0-9_]+\b", page.read_text())) - {variable(name) for name in settings}:
        assert name in code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_tests_and_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z0-9]+)\b", " ".join(inline(page))):
        assert f"\n{target}:" in makefile
    tests = sources("tests/**/test_*.py")
    for name in inline(page):
        if re.fullmatch(r"(tas|bus|workers|cli|lab|tests|docs|deploy|examples)/[\w./-]+", name):
            assert (ROOT / name).exists() or (ROOT / name).with_suffix(".py").exists(), name
        if re.fullmatch(r"test_\w+", name):
            assert re.search(rf"def {name}\b", tests), name


def test_every_command_and_every_worker_is_mentioned() -> None:
    named = "".join(page.read_text() for page in (ROOT / "README.md", ROOT / "docs" / "README.md"))
    for name in set(COMMANDS) - {"docs", "crd"}:
        assert f"tas {name}" in named or f"make {name}" in named, name
    flow = (ROOT / "docs" / "background" / "architecture.md").read_text()
    for name in ("collect", "evaluate", "events", "extender", "labels", "marks", "materialize", "policies", "watch"):
        assert name in flow
