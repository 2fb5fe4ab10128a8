from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from bus.connection import Bus
from bus.subscription import Subscription
from tas.events.data import EndReason, ViolationEnded, ViolationStarted
from tas.values.backoff import Backoff
from tests.integration.servers import eventually

from .running import publish, running

OF: dict[str, Any] = {"node": "node-1", "namespace": "default", "policy": "demo", "strategy": "dontschedule"}


async def test_a_chat_gets_each_message_in_order_also_those_that_it_did_not_accept(
    example: Callable[[str], Any], bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = example("chat_webhook")
    quick = Backoff(first=0.01, longest=0.01)
    defaults = Subscription.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "retry", quick)
    statuses = [500, 302, 200, 200]
    posted: list[tuple[int, str]] = []

    async def hook(request: web.Request) -> web.Response:
        status = statuses.pop(0)
        posted.append((status, (await request.json())["text"]))
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 302 else {})

    app = web.Application()
    app.router.add_post("/hooks/secret", hook)

    async def elsewhere(_request: web.Request) -> web.Response:
        return web.Response()  # a redirection must not get here

    app.router.add_route("*", "/elsewhere", elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        arguments = (f"http://127.0.0.1:{port}/hooks/secret", "--policy", "default/demo")
        async with running(chat, bus, "chat-webhook", *arguments):
            await publish(bus, ViolationStarted(**OF, value="2"))
            await publish(bus, ViolationEnded(**OF, reason=EndReason.MET))
            await eventually(lambda: len(posted) == 4)  # the last status is taken before the text is read
    finally:
        await runner.cleanup()
    begins = ":warning: node-1 violates default/demo (dontschedule): 2"
    ends = ":white_check_mark: node-1 no longer violates default/demo (dontschedule): met"
    assert posted == [(500, begins), (302, begins), (200, begins), (200, ends)]
