"""Extensions over HTTP beside telemetry: an error of an extension affects only its own path."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tas.extender.verbs import Answer
from tas.extension import Binding, Hooks, NodeView, Pod
from tas.view.view import View
from tests.deciders import FixedDecider
from tests.integration.servers import eventually
from workers.http.address import Address
from workers.http.listening import listening
from workers.scheduler.extensions import Extension
from workers.scheduler.http import build_app, verb_handlers
from workers.scheduler.metrics import ExtenderMetrics
from workers.scheduler.mounted import MAX_UNFINISHED, MountedExtension, entered

LOOPBACK = Address("127.0.0.1", 0)
LIMIT = 0.2
PATIENCE = 120.0
POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}
NAMES = {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]}
VICTIMS = {"Pod": POD, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}}
BINDING = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "a"}
BODIES = {"filter": NAMES, "prioritize": NAMES, "preempt": VICTIMS, "bind": BINDING}


@dataclass
class Served:
    """Telemetry at /scheduler and an extension at /own."""

    url: str
    mounted: MountedExtension
    session: aiohttp.ClientSession
    registry: CollectorRegistry
    answers: list[Answer] = field(default_factory=list)

    async def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        body = BODIES[path.rpartition("/")[2]] if body is None else body
        async with self.session.post(f"{self.url}{path}", json=body) as reply:
            return reply.status, await reply.json()

    async def telemetry_answers(self) -> None:
        """Sends requests to telemetry, as the scheduler would at the same time."""
        assert (await self.ask("/scheduler/filter"))[1]["NodeNames"] == ["a", "b"]
        assert await self.ask("/scheduler/prioritize") == (200, [{"Host": "a", "Score": 7}, {"Host": "b", "Score": 0}])

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"path": "/own"} | labels)


@asynccontextmanager
async def serving(
    hooks: Hooks | None, *, instance: Any = None, problem: str | None = None, limit: float = PATIENCE
) -> AsyncIterator[Served]:
    extension = Extension(
        name="own", package="own 1.0", target="own:Own", hooks=hooks, instance=instance, problem=problem
    )
    mounted = MountedExtension(extension, NodeView(View()), limit=limit)
    registry, answers = CollectorRegistry(), list[Answer]()
    app = build_app(
        {"/scheduler": verb_handlers(FixedDecider(scores={"a": 7})), extension.path: mounted.verbs},
        unready=lambda: None,
        on_answer=answers.append,
        metrics=ExtenderMetrics(registry),
    )
    async with (
        listening(app, LOOPBACK, purpose="test") as address,
        aiohttp.ClientSession() as session,
        entered([mounted]),
    ):
        yield Served(f"http://{address}", mounted, session, registry, answers)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def events(logs: list[Any], name: str) -> list[Any]:
    return [line for line in logs if line["event"] == name]


def hooks_of(verb: str, hook: Callable[..., Any]) -> Hooks:
    return Hooks(**{{"prioritize": "score"}.get(verb, verb): hook})


async def test_every_hook_answers_below_its_path_async_or_not(logs: list[Any]) -> None:
    async def score(_pod: Pod, candidates: Any, _now: float) -> dict[str, int]:
        await asyncio.sleep(0)
        return dict.fromkeys(candidates, 3)

    asked: list[Binding] = []
    hooks = Hooks(
        filter=lambda pod, candidates, now: {"b": f"{pod.name} of {pod.namespace}"} if "b" in candidates else {},
        score=score,
        bind=lambda binding, now: asked.append(binding),
    )
    async with serving(hooks) as served:
        _, filtered = await served.ask("/own/filter")
        assert (filtered["NodeNames"], filtered["FailedAndUnresolvableNodes"]) == (["a"], {"b": "p of n"})
        assert await served.ask("/own/prioritize") == (200, [{"Host": "a", "Score": 3}, {"Host": "b", "Score": 3}])
        assert (await served.ask("/own/preempt"))[1] == {"NodeNameToMetaVictims": VICTIMS["NodeNameToMetaVictims"]}
        assert await served.ask("/own/bind") == (200, {"Error": ""})
        await served.telemetry_answers()

        assert asked == [Binding(namespace="n", name="p", uid="u", node="a")]
        assert (await served.ask("/scheduler/bind", BINDING))[0] == 404
        assert served.metric("tas_extender_requests_total", verb="bind", code="200") == 1
        assert served.metric("tas_extender_rejected_total") == 1
        assert {answer.path for answer in served.answers} == {"/own", "/scheduler"}
    (mounted,) = events(logs, "extension_mounted")
    assert (mounted["extension"], mounted["path"]) == ("own", "/own")
    assert sorted(mounted["verbs"]) == ["bind", "filter", "preempt", "prioritize"]


async def test_a_verb_without_a_hook_gets_404(logs: list[Any]) -> None:
    async with serving(Hooks(score=lambda *_: {})) as served:
        for verb in ("filter", "preempt", "bind"):
            assert (await served.ask(f"/own/{verb}"))[0] == 404


@pytest.mark.parametrize("body", [{}, [], {"Pod": None}, {"Pod": POD}])
@pytest.mark.parametrize("verb", BODIES)
async def test_bad_input_gets_400_before_a_hook_is_called(logs: list[Any], verb: str, body: Any) -> None:
    asked: list[Any] = []
    async with serving(hooks_of(verb, lambda *given: asked.append(given))) as served:
        status, answer = await served.ask(f"/own/{verb}", body)

    assert (status, asked) == (400, [])
    assert answer["error"].startswith("Extender")


async def test_an_invalid_field_that_a_hook_reads_gets_400_with_the_field(logs: list[Any]) -> None:
    hooks = Hooks(filter=lambda pod, *_: pod.annotations, score=lambda *_: {})
    body = NAMES | {"Pod": {"metadata": POD["metadata"] | {"annotations": {"a": [7]}}}}
    async with serving(hooks) as served:
        status, answer = await served.ask("/own/filter", body)
        assert (status, (await served.ask("/own/prioritize", body))[0]) == (400, 200)

    assert "Pod.metadata.annotations" in answer["error"]
    assert not events(logs, "extension_failed")


class CustomExit(BaseException):
    """An error that is no Exception."""


def raises(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise error

    return hook


def raises_later(error: BaseException) -> Callable[..., Any]:
    async def hook(*_: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    return hook


ERRORS = [ValueError("no such card"), SystemExit(3), KeyboardInterrupt(), CustomExit("bye"), asyncio.CancelledError()]


@pytest.mark.parametrize("verb", BODIES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("make", [raises, raises_later])
async def test_a_hook_that_raises_gives_500_on_its_own_path_only(
    logs: list[Any], make: Any, error: BaseException, verb: str
) -> None:
    async with serving(hooks_of(verb, make(error))) as served:
        for _ in range(3):
            status, answer = await served.ask(f"/own/{verb}")
            assert status == 500
            assert answer["error"].startswith(f"extension own {verb}: {type(error).__name__}: ")
        await served.telemetry_answers()

        assert served.metric("tas_extender_requests_total", verb=verb, code="500") == 3
    (failed,) = events(logs, "extension_failed")  # equal errors are logged once
    assert (failed["extension"], failed["verb"], failed["log_level"]) == ("own", verb, "error")
    assert failed["exc_info"] is error


async def test_a_hook_that_cancels_itself_gives_500() -> None:
    async def hook(*_: Any) -> dict[str, int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return {}

    async with serving(Hooks(score=hook)) as served:
        assert (await served.ask("/own/prioritize"))[0] == 500
        await served.telemetry_answers()


@pytest.mark.parametrize(
    ("verb", "given", "message"),
    [
        ("prioritize", {"a": 11}, "a = 11: a score is an integer from 0 to 10"),
        ("prioritize", {"a": -1}, "a = -1: a score is an integer from 0 to 10"),
        ("prioritize", {"a": 7.0}, "a = 7.0: a score is an integer from 0 to 10"),
        ("prioritize", {"c": 1}, "'c': the node is not in the request"),
        ("filter", {"c": "x"}, "'c': the node is not in the request"),
        ("filter", None, "None: must be a mapping of nodes to rejected nodes"),
        ("filter", {"a": "\ud800"}, "UnicodeEncodeError"),
        ("preempt", {"a": 7}, "a = 7: must be the Victims of the node"),
        ("bind", 7, "7: must be nothing, or why the pod cannot be bound"),
    ],
)
async def test_facts_c25_an_invalid_hook_result_gives_500_with_the_value(
    logs: list[Any], verb: str, given: Any, message: str
) -> None:
    async with serving(hooks_of(verb, lambda *_: given)) as served:
        status, answer = await served.ask(f"/own/{verb}")
        await served.telemetry_answers()

    assert status == 500
    assert answer["error"].startswith(f"extension own {verb}: ")
    assert message in answer["error"] or "TypeError" in answer["error"]
    assert events(logs, "extension_answer_refused") or events(logs, "extension_failed")


async def test_facts_c2_a_hook_above_the_time_limit_is_cancelled(logs: list[Any]) -> None:
    ended: list[bool] = []

    async def hook(*_: Any) -> dict[str, int]:
        try:
            await asyncio.Event().wait()  # for ever: nothing but the cancellation ends it
        finally:
            ended.append(True)
        return {}

    async with serving(Hooks(score=hook), limit=LIMIT) as served:
        slow = asyncio.create_task(served.ask("/own/prioritize"))
        while not slow.done():
            await served.telemetry_answers()

        assert await slow == (504, {"error": "extension own prioritize: no answer within 0.2 s"})
        await eventually(lambda: ended == [True])
    (cut_off,) = events(logs, "extension_timed_out")
    assert (cut_off["extension"], cut_off["verb"], cut_off["seconds"]) == ("own", "prioritize", LIMIT)


async def test_hooks_that_ignore_cancellation_are_not_called_above_a_limit(
    logs: list[Any],
) -> None:
    released = asyncio.Event()

    async def hook(*_: Any) -> dict[str, int]:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("late, and wrong as well")

    async with serving(Hooks(score=hook), limit=LIMIT) as served:
        for _ in range(MAX_UNFINISHED // 10):
            cut_off = await asyncio.gather(*(served.ask("/own/prioritize") for _ in range(10)))
            assert {status for status, _ in cut_off} == {504}
        status, answer = await served.ask("/own/prioritize")
        assert status == 503
        assert f"{MAX_UNFINISHED} cancelled calls have not ended" in answer["error"]
        await served.telemetry_answers()
        released.set()

        async def asked_again() -> bool:
            return (await served.ask("/own/prioritize"))[0] == 500

        await eventually(asked_again)


async def test_an_extension_that_cannot_be_mounted_answers_with_its_problem(logs: list[Any]) -> None:
    async with serving(None, problem="own:Own cannot be loaded: ImportError: 'torch'") as served:
        for verb in BODIES:
            assert await served.ask(f"/own/{verb}") == (
                503,
                {"error": "extension own: own:Own cannot be loaded: ImportError: 'torch'"},
            )
        await served.telemetry_answers()
        assert served.mounted.describe()["problem"] == "own:Own cannot be loaded: ImportError: 'torch'"
        assert served.mounted.is_mounted() == 0.0
    (describe,) = events(logs, "extension_not_mounted")
    assert (describe["extension"], describe["log_level"]) == ("own", "error")


class Entered:
    """An async context manager with a hook."""

    def __init__(self) -> None:
        self.may_enter = asyncio.Event()
        self.steps: list[str] = []
        self.fails: list[str] = []

    async def __aenter__(self) -> None:
        await self.may_enter.wait()
        self.steps.append("entered")
        if "enter" in self.fails:
            sys.exit(3)

    async def __aexit__(self, *_: object) -> None:
        self.steps.append("left")
        if "exit" in self.fails:
            raise ValueError("not now")


SCORES = Hooks(score=lambda *_: {"a": 1})


async def test_a_context_manager_answers_once_entered_and_is_left_at_the_end(logs: list[Any]) -> None:
    extension = Entered()
    async with serving(SCORES, instance=extension) as served:
        status, answer = await served.ask("/own/prioritize")
        assert (status, answer) == (503, {"error": "extension own prioritize: it is starting"})
        await served.telemetry_answers()
        extension.may_enter.set()

        async def answers() -> bool:
            return (await served.ask("/own/prioritize"))[0] == 200

        await eventually(answers)
        assert served.mounted.is_mounted() == 1.0
    assert extension.steps == ["entered", "left"]


async def test_a_context_manager_that_fails_to_start_answers_with_its_problem(logs: list[Any]) -> None:
    extension = Entered()
    extension.fails.append("enter")
    extension.may_enter.set()
    async with serving(SCORES, instance=extension) as served:
        await eventually(lambda: bool(events(logs, "extension_not_mounted")))
        status, answer = await served.ask("/own/prioritize")
        assert (status, answer) == (
            503,
            {"error": "extension own prioritize: it cannot start: SystemExit: '3'"},
        )
        await served.telemetry_answers()


async def test_a_context_manager_that_fails_at_the_end_does_not_block_the_stop(logs: list[Any]) -> None:
    extension = Entered()
    extension.fails.append("exit")
    extension.may_enter.set()
    async with serving(SCORES, instance=extension):
        await eventually(lambda: bool(events(logs, "extension_mounted")))

    (failed,) = events(logs, "extension_failed")
    assert (failed["extension"], failed["verb"], str(failed["exc_info"])) == ("own", "exit", "not now")


async def test_the_call_of_a_disconnected_client_is_cancelled_at_the_time_limit(logs: list[Any]) -> None:
    steps: list[str] = []

    async def hook(*_: Any) -> dict[str, str]:
        steps.append("called")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")
        return {}

    async with serving(hooks_of("filter", hook), limit=LIMIT) as served:
        asking = asyncio.create_task(served.ask("/own/filter"))
        await eventually(lambda: steps[:1] == ["called"])
        asking.cancel()
        await asyncio.wait([asking])
        await served.telemetry_answers()
        await eventually(lambda: steps == ["called", "ended"])
