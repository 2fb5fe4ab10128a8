"""Loading of extensions: which are mounted, and the problem of each that is not."""

import sys
from importlib.metadata import EntryPoint

import pytest
from structlog.testing import capture_logs

from tas.extension import NodeView
from tas.view.view import View
from workers.process.errors import StartError
from workers.scheduler.extensions import GROUP, RESERVED, Extension, load

SAMPLES = "tests.unit.workers.scheduler.extension_samples"


def point(name: str, target: str) -> EntryPoint:
    return EntryPoint(name=name, value=target if ":" in target else f"{SAMPLES}:{target}", group=GROUP)


def loaded(*points: EntryPoint, only: str | None = None) -> list[Extension]:
    return load(points, NodeView(View()), only=only)


def test_a_class_is_mounted_below_its_name_with_its_hooks() -> None:
    (extension,) = loaded(point("gpu-cards", "Good"))

    assert (extension.name, extension.path, extension.problem) == ("gpu-cards", "/gpu-cards", None)
    assert extension.target == f"{SAMPLES}:Good"
    assert extension.hooks is not None
    assert extension.hooks.filter == extension.instance.filter
    assert (extension.hooks.score, extension.hooks.preempt, extension.hooks.bind) == (None, None, None)


def test_functions_are_mounted() -> None:
    (extension,) = loaded(point("gpu", "functions"))

    assert extension.hooks is not None
    assert extension.hooks.score is not None
    assert extension.hooks.filter is None


def test_all_extensions_see_the_same_and_each_is_known_by_what_it_reads() -> None:
    first, second = loaded(point("a", "Good"), point("b", "Good"))

    cards, allocations = first.instance.nodes.cards(), first.instance.nodes.allocations()
    assert first.nodes is first.instance.nodes
    assert second.nodes is not None
    assert (second.nodes.reads_cards, second.nodes.reads_allocations) == (False, False)
    assert second.nodes.cards() is cards
    assert (second.nodes.reads_cards, second.nodes.reads_allocations) == (True, False)
    assert second.nodes.allocations() is allocations


WRONG = [
    pytest.param([point("Upper", "Good")], "", "name = 'Upper': must be lower case letters", id="upper_case"),
    pytest.param([point("a/b", "Good")], "", "name = 'a/b': must be", id="no_path"),
    pytest.param([point("-", "Good")], "", "name = '-': must be", id="dash"),
    *(pytest.param([point(name, "Good")], "", "is reserved", id=f"reserved_{name}") for name in sorted(RESERVED)),
    pytest.param(
        [point("x", "Good"), point("x", "functions")], "/x", "several extensions have this name: ", id="twice"
    ),
    pytest.param([point("x", "no_such_module:Good")], "/x", "ModuleNotFoundError", id="no_module"),
    pytest.param([point("x", "no_such_name")], "/x", "AttributeError", id="no_name"),
    pytest.param([point("x", "raises")], "/x", "cannot be loaded: ValueError: 'no such card'", id="raises"),
    pytest.param([point("x", "leaves")], "/x", "cannot be loaded: SystemExit", id="leaves"),
    pytest.param([point("x", "not_callable")], "/x", "cannot be loaded: TypeError", id="not_callable"),
    pytest.param([point("x", "NoHooks")], "/x", "it has none of the hooks filter, score, preempt, bind", id="no_hooks"),
    pytest.param([point("x", "NoFunction")], "/x", "filter = 7: must be a function", id="no_function"),
    pytest.param([point("x", "Binds")], "/x", "must run in a separate process: tas run extender --only x", id="binds"),
]


@pytest.mark.parametrize(("points", "path", "problem"), WRONG)
def test_an_invalid_extension_has_a_problem_and_the_others_are_loaded(
    points: list[EntryPoint], path: str, problem: str
) -> None:
    with capture_logs():
        extensions = {each.name: each for each in loaded(*points, point("good", "Good"))}

    assert extensions.pop("good").problem is None
    (extension,) = extensions.values()
    assert extension.hooks is None
    assert extension.path == path
    assert extension.problem is not None
    assert problem in extension.problem


def test_a_package_found_twice_is_loaded_once() -> None:
    (extension,) = loaded(point("x", "Good"), point("x", "Good"))

    assert extension.problem is None


def test_a_load_error_is_logged_with_its_traceback() -> None:
    with capture_logs() as logs:
        loaded(point("x", "raises"))

    failed = next(line for line in logs if line["event"] == "extension_load_failed")
    assert (failed["log_level"], failed["extension"], str(failed["exc_info"])) == ("error", "x", "no such card")


def test_facts_c30_an_extension_alone_may_bind() -> None:
    (extension,) = loaded(point("x", "Binds"), only="x")

    assert extension.problem is None
    assert extension.hooks is not None
    assert extension.hooks.bind is not None


def test_with_only_no_other_extension_is_imported() -> None:
    other = point("other", "tests.installed_never_imported:Other")

    (extension,) = loaded(point("x", "Good"), other, only="x")

    assert extension.name == "x"
    assert "tests.installed_never_imported" not in sys.modules


def test_only_telemetry_loads_no_extension() -> None:
    assert loaded(point("x", "Binds"), only="telemetry") == []


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("y", "extension 'y' is not installed. Installed: telemetry, x"),
        ("x", "extension x: .*raises cannot be loaded: ValueError"),
    ],
)
def test_with_only_the_extension_must_be_installed_and_valid(only: str, message: str) -> None:
    with capture_logs(), pytest.raises(StartError, match=message):
        loaded(point("x", "raises"), only=only)
