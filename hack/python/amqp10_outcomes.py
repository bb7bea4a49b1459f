"""Consumes over AMQP 1.0 and settles each message as its subject asks.

    amqp10_outcomes.py HOST:PORT USER PASSWORD VHOST QUEUE COUNT [SECONDS]

A message's subject (its property `type` in AMQP 0-9-1) names the outcome of its
first delivery; every later delivery is rejected:

    accepted, rejected, released, modified-failed,
    modified-dead        undeliverable here, annotated x-opt-redrive: dead
    modified-schema      undeliverable here, annotated x-opt-category: schema

Ends after COUNT deliveries and prints each as a JSON object a line.
"""

import json
import sys
import time

from proton import Delivery, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container

ANNOTATIONS = {
    "modified-dead": {symbol("x-opt-redrive"): "dead"},
    "modified-schema": {symbol("x-opt-category"): "schema"},
}


class Outcomes(MessagingHandler):
    def __init__(self, address, user, password, vhost, queue, count, seconds):
        super().__init__(prefetch=10, auto_accept=False)
        self.address, self.vhost, self.queue = address, vhost, queue
        self.user, self.password = user, password
        self.left, self.seconds = count, seconds
        self.seen = {}

    def on_start(self, event):
        connection = event.container.connect(
            f"amqp://{self.address}",
            user=self.user,
            password=self.password,
            virtual_host=f"vhost:{self.vhost}",
            reconnect=False,
            allowed_mechs="PLAIN",
        )
        event.container.create_receiver(connection, f"/queues/{self.queue}")
        event.container.schedule(self.seconds, self)
        self.connection = connection

    def on_timer_task(self, event):
        sys.exit(f"{self.left} deliveries did not come within {self.seconds} s")

    def on_transport_error(self, event):
        sys.exit(str(event.transport.condition))

    def on_link_error(self, event):
        sys.exit(str(event.link.remote_condition))

    def on_message(self, event):
        message, delivery = event.message, event.delivery
        before = self.seen.get(message.id, 0)
        self.seen[message.id] = before + 1
        # RabbitMQ hands `type` on as this annotation, or as the subject.
        wish = message.subject or (message.annotations or {}).get(symbol("x-basic-type"))
        outcome = wish if before == 0 else "rejected"
        settle(delivery, outcome)
        line = {"id": str(message.id), "before": before, "outcome": outcome, "at": time.time()}
        print(json.dumps(line), flush=True)
        self.left -= 1
        if self.left == 0:
            # Time for the last settlement to be sent.
            event.container.schedule(0.5, Leave(self.connection))


class Leave(MessagingHandler):
    def __init__(self, connection):
        super().__init__()
        self.connection = connection

    def on_timer_task(self, event):
        self.connection.close()
        event.container.stop()


def settle(delivery, outcome):
    if outcome == "accepted":
        delivery.update(Delivery.ACCEPTED)
    elif outcome == "rejected":
        delivery.update(Delivery.REJECTED)
    elif outcome == "released":
        delivery.update(Delivery.RELEASED)
    elif outcome == "modified-failed":
        delivery.local.failed = True
        delivery.update(Delivery.MODIFIED)
    else:
        delivery.local.undeliverable = True
        delivery.local.annotations = ANNOTATIONS[outcome]
        delivery.update(Delivery.MODIFIED)
    delivery.settle()


def main():
    address, user, password, vhost, queue, count = sys.argv[1:7]
    seconds = float(sys.argv[7]) if len(sys.argv) > 7 else 60.0
    Container(Outcomes(address, user, password, vhost, queue, int(count), seconds)).run()


if __name__ == "__main__":
    main()
