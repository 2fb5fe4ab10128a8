"""Extensions as they are found: what is mounted, and that whatever is wrong with one is said of that one."""

import sys
from importlib.metadata import EntryPoint

import pytest
from structlog.testing import capture_logs

from tas.extension import NodeView
from tas.view import View
from workers.extensions import GROUP, RESERVED, Extension, load
from workers.runtime import StartError

SAMPLES = "tests.unit.workers.extension_samples"


def point(name: str, target: str) -> EntryPoint:
    return EntryPoint(name=name, value=target if ":" in target else f"{SAMPLES}:{target}", group=GROUP)


def loaded(*points: EntryPoint, only: str | None = None) -> list[Extension]:
    return load(points, NodeView(View()), only=only)


def test_a_class_is_mounted_below_its_name_with_the_hooks_it_has() -> None:
    (extension,) = loaded(point("gpu-cards", "Good"))

    assert (extension.name, extension.path, extension.problem) == ("gpu-cards", "/gpu-cards", None)
    assert extension.target == f"{SAMPLES}:Good"
    assert extension.hooks is not None
    assert extension.hooks.filter == extension.held.filter
    assert (extension.hooks.score, extension.hooks.preempt, extension.hooks.bind) == (None, None, None)


def test_functions_are_mounted_as_well() -> None:
    (extension,) = loaded(point("gpu", "functions"))

    assert extension.hooks is not None
    assert extension.hooks.score is not None
    assert extension.hooks.filter is None


def test_all_get_one_view() -> None:
    first, second = loaded(point("a", "Good"), point("b", "Good"))

    assert first.held.nodes is second.held.nodes


WRONG = [
    pytest.param([point("Upper", "Good")], "", "name = 'Upper': must be lower case letters", id="upper_case"),
    pytest.param([point("a/b", "Good")], "", "name = 'a/b': must be", id="no_path"),
    pytest.param([point("-", "Good")], "", "name = '-': must be", id="dash"),
    *(pytest.param([point(name, "Good")], "", "is taken", id=f"taken_{name}") for name in sorted(RESERVED)),
    pytest.param([point("x", "Good"), point("x", "functions")], "/x", "two have this name: ", id="twice"),
    pytest.param([point("x", "no_such_module:Good")], "/x", "ModuleNotFoundError", id="no_module"),
    pytest.param([point("x", "no_such_name")], "/x", "AttributeError", id="no_name"),
    pytest.param([point("x", "raises")], "/x", "cannot be loaded: ValueError: 'no such card'", id="raises"),
    pytest.param([point("x", "leaves")], "/x", "cannot be loaded: SystemExit", id="leaves"),
    pytest.param([point("x", "not_callable")], "/x", "cannot be loaded: TypeError", id="not_callable"),
    pytest.param([point("x", "NoHooks")], "/x", "it has none of the hooks filter, score, preempt, bind", id="no_hooks"),
    pytest.param([point("x", "NoFunction")], "/x", "filter = 7: must be a function", id="no_function"),
    pytest.param([point("x", "Binds")], "/x", "needs a process of its own: tas run extender --only x", id="binds"),
]


@pytest.mark.parametrize(("points", "path", "problem"), WRONG)
def test_what_is_wrong_with_one_is_told_and_the_others_go_on(points: list[EntryPoint], path: str, problem: str) -> None:
    with capture_logs():
        extensions = {each.name: each for each in loaded(*points, point("good", "Good"))}

    assert extensions.pop("good").problem is None
    (extension,) = extensions.values()
    assert extension.hooks is None
    assert extension.path == path
    assert extension.problem is not None
    assert problem in extension.problem


def test_one_package_found_twice_is_one() -> None:
    (extension,) = loaded(point("x", "Good"), point("x", "Good"))

    assert extension.problem is None


def test_what_cannot_be_loaded_is_logged_with_the_traceback() -> None:
    with capture_logs() as logs:
        loaded(point("x", "raises"))

    failed = next(line for line in logs if line["event"] == "extension_not_loaded")
    assert (failed["log_level"], failed["extension"], str(failed["exc_info"])) == ("error", "x", "no such card")


def test_protocol_c30_alone_it_may_bind() -> None:
    (extension,) = loaded(point("x", "Binds"), only="x")

    assert extension.problem is None
    assert extension.hooks is not None
    assert extension.hooks.bind is not None


def test_of_the_others_nothing_is_imported_when_one_is_alone() -> None:
    other = point("other", "tests.installed_never_imported:Other")

    (extension,) = loaded(point("x", "Good"), other, only="x")

    assert extension.name == "x"
    assert "tests.installed_never_imported" not in sys.modules


def test_telemetry_alone_is_no_extension() -> None:
    assert loaded(point("x", "Binds"), only="telemetry") == []


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("y", "extension 'y' is not installed: there are telemetry, x"),
        ("x", "extension x: .*raises cannot be loaded: ValueError"),
    ],
)
def test_alone_it_must_be_there_and_right(only: str, message: str) -> None:
    with capture_logs(), pytest.raises(StartError, match=message):
        loaded(point("x", "raises"), only=only)
