"""Posts each violation that begins or ends to the incoming webhook of a chat.

`python chat_webhook.py --policy default/demo-policy https://chat.example/hooks/SECRET`
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

import aiohttp

from bus.subscription import Subscription
from tas.events.data import ViolationEnded, ViolationStarted
from tas.events.event import Event

TIMEOUT = aiohttp.ClientTimeout(total=10)


def message(event: Event) -> str:
    """What the chat shows."""
    match event.data:
        case ViolationStarted(node=node, namespace=namespace, policy=policy, strategy=strategy, value=value):
            return f":warning: {node} violates {namespace}/{policy} ({strategy}): {value}"
        case ViolationEnded(node=node, namespace=namespace, policy=policy, strategy=strategy, reason=reason):
            return f":white_check_mark: {node} no longer violates {namespace}/{policy} ({strategy}): {reason}"
        case data:  # a gap
            return f":grey_question: events were lost: {data}"


async def main(arguments: Sequence[str] | None = None) -> None:
    """Posts until cancelled. A message that the chat does not accept comes again, and then the newer ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("webhook")
    parser.add_argument("--bus", default=os.environ.get("TAS_BUS", "nats://127.0.0.1:4222"))
    parser.add_argument("--policy", default="", metavar="[NAMESPACE/]NAME")
    given = parser.parse_args(arguments)
    of = (ViolationStarted, ViolationEnded)
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT) as session,
        Subscription(given.bus, "chat-webhook", of=of, policy=given.policy) as events,
    ):
        async for event in events:
            # The reasons do not contain the URL, which is a secret.
            try:
                async with session.post(given.webhook, json={"text": message(event)}, allow_redirects=False) as answer:
                    if not 200 <= answer.status < 300:
                        await events.retry(f"the chat answers {answer.status}")
            except (aiohttp.ClientError, TimeoutError) as error:
                await events.retry(f"the chat does not answer: {type(error).__name__}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
