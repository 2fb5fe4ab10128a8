"""How a pass over all nodes takes turns with nodes that change."""

import asyncio

from workers.evaluate.worker import HANDLED, MAX_QUEUED, Turns


async def run_others() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_pass_goes_on_at_once_while_few_nodes_are_queued() -> None:
    await asyncio.wait_for(Turns(lambda: MAX_QUEUED).wait(), timeout=120)


async def test_a_pass_goes_on_although_the_queue_never_gets_short() -> None:
    turns = Turns(lambda: MAX_QUEUED + 1)
    waiting = asyncio.create_task(turns.wait())
    for _ in range(HANDLED):
        await run_others()
        assert not waiting.done()
        turns.note_handled()
    await asyncio.wait_for(waiting, timeout=120)


async def test_a_pass_that_must_end_does_not_wait() -> None:
    queued = MAX_QUEUED + 1
    turns = Turns(lambda: queued)
    waiting = asyncio.create_task(turns.wait())
    await run_others()
    assert not waiting.done()
    queued = 0
    turns.note_handled()
    await asyncio.wait_for(waiting, timeout=120)
