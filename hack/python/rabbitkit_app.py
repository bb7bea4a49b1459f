"""An application on rabbitkit: one subscriber with retries, which always fails.

    rabbitkit_app.py HOST:PORT USER PASSWORD VHOST QUEUE EXCHANGE MODE DELAYS COUNT

MODE is AUTO_DECLARE or PASSIVE_ONLY, DELAYS are seconds such as 5,30,120,600.
Prints {"started": true}, then each of COUNT deliveries, as JSON objects, and
ends. Where rabbitkit does not start, it ends with an error.
"""

import asyncio
import json
import sys
import time

# rabbitkit logs to standard output, which is for our lines alone.
OUTPUT, sys.stdout = sys.stdout, sys.stderr

from rabbitkit import AsyncBroker, RabbitConfig, RetryConfig  # noqa: E402
from rabbitkit.core.config import ConnectionConfig  # noqa: E402
from rabbitkit.core.message import RabbitMessage  # noqa: E402
from rabbitkit.core.types import TopologyMode  # noqa: E402


def say(**line):
    print(json.dumps(line), file=OUTPUT, flush=True)


async def main():
    address, user, password, vhost, queue, exchange, mode, delays, count = sys.argv[1:10]
    host, port = address.rsplit(":", 1)
    connection = ConnectionConfig(
        host=host, port=int(port), username=user, password=password, vhost=vhost
    )
    broker = AsyncBroker(RabbitConfig(connection=connection, topology_mode=TopologyMode[mode]))
    delays = tuple(int(delay) for delay in delays.split(","))
    left = int(count)
    done = asyncio.Event()

    @broker.subscriber(
        queue=queue,
        exchange=exchange,
        routing_key=queue,
        retry=RetryConfig(max_retries=len(delays), delays=delays),
    )
    async def handle(body: bytes, message: RabbitMessage) -> None:
        nonlocal left
        retries = (message.headers or {}).get("x-rabbitkit-retry-count", 0)
        say(id=message.message_id, retries=int(retries), body=body.decode(), at=time.time())
        left -= 1
        if left == 0:
            done.set()
        raise ConnectionError("the database is away")

    await broker.start()
    say(started=True)
    if left:
        await done.wait()
        # Time for the last failure to be handed on.
        await asyncio.sleep(1)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(main())
