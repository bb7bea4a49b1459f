"""A consumer that knows nothing of retries: it handles orders, and rejects what it can't handle.

    AMQP_URI=amqp://... python consumer.py --name python-1 --queue orders.queue --payments DIR

Its Rust sibling, examples/consumer.rs, does the same. Each order says in its
body how the payment goes, so that a demonstration has something to show:
"fine", "fails once", "fails twice", "fails always", or "crashes". The latter
ends this process in the middle of its work, as a bug would. With --fixed it is
the release in which no payment fails for ever.

For each delivery it prints a line of JSON before it settles it.
"""

import argparse
import json
import os
import pathlib

import pika

FAILURES = {"fine": 0, "fails once": 1, "fails twice": 2, "fails always": 1_000}


class Declined(Exception):
    """The payment did not go through."""


def pay(order, failures, payments):
    """Asks the payment provider, who remembers across all consumers how often an order was tried."""
    for attempt in range(failures):
        try:
            (payments / f"{order}.{attempt}").open("x").close()
        except FileExistsError:
            continue
        raise Declined


def handle(channel, method, body, name, payments, failures):
    """Handles one delivery: acknowledges it, rejects it, or crashes."""
    order = json.loads(body)

    def tell(result):
        line = {"consumer": name, "order": order["order"], "exchange": method.exchange, "result": result}
        print(json.dumps(line), flush=True)

    if order["payment"] == "crashes":
        tell("crashed")
        os._exit(1)
    try:
        pay(order["order"], failures[order["payment"]], payments)
    except Declined:
        tell("rejected")
        # All that a consumer has to do. Where the message goes is not its business.
        channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        tell("processed")
        channel.basic_ack(method.delivery_tag)


def main():
    """Consumes until the connection or the process ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--payments", required=True, type=pathlib.Path)
    parser.add_argument("--fixed", action="store_true")
    arguments = parser.parse_args()
    failures = FAILURES | ({"fails always": 0} if arguments.fixed else {})

    parameters = pika.URLParameters(os.environ["AMQP_URI"])
    parameters.client_properties = {"connection_name": f"consumer {arguments.name}"}
    channel = pika.BlockingConnection(parameters).channel()
    # A consumer that crashes takes with it what it holds: so hold one message only.
    channel.basic_qos(prefetch_count=1)
    for method, _, body in channel.consume(arguments.queue):
        handle(channel, method, body, arguments.name, arguments.payments, failures)


if __name__ == "__main__":
    main()
