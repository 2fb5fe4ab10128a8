"""How many histories play at a time on one loop."""

import asyncio

from tests.integration.removal.play import MOST_LATE_SECONDS, Turns

HISTORIES = 4


class Played:
    """Plays histories on a loop of this lateness; each waits until `all_play`, if that is set."""

    def __init__(self, late: float, *, all_play: asyncio.Barrier | None = None) -> None:
        self._turns = Turns(lambda: late)
        self._all_play = all_play
        self._playing = self._settling = 0
        self.most_playing = self.most_settling = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._play() for _ in range(HISTORIES)))

    async def _play(self) -> None:
        async with self._turns.turn() as turn:
            self._playing += 1
            self.most_playing = max(self.most_playing, self._playing)
            await self._settle()
            await turn.begun()
            if self._all_play is not None:
                await self._all_play.wait()
            async with turn.settling:
                await self._settle()
            self._playing -= 1

    async def _settle(self) -> None:
        self._settling += 1
        self.most_settling = max(self.most_settling, self._settling)
        await asyncio.sleep(0)
        self._settling -= 1


async def test_histories_play_at_the_same_time_and_settle_one_at_a_time() -> None:
    played = Played(0.0, all_play=asyncio.Barrier(HISTORIES))
    await played.run()
    assert (played.most_playing, played.most_settling) == (HISTORIES, 1)


async def test_on_a_late_loop_one_history_plays_at_a_time() -> None:
    played = Played(2 * MOST_LATE_SECONDS)
    await played.run()
    assert (played.most_playing, played.most_settling) == (1, 1)


async def test_a_history_that_fails_ends_its_turn() -> None:
    turns = Turns(lambda: 2 * MOST_LATE_SECONDS)

    async def fail() -> None:
        async with turns.turn():
            raise LookupError

    async def play() -> None:
        async with turns.turn() as turn:
            await turn.begun()

    results = await asyncio.gather(fail(), play(), return_exceptions=True)
    assert [type(each) for each in results] == [LookupError, type(None)]
