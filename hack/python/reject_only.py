"""A consumer that knows nothing but to reject, as plain as pika can be.

    reject_only.py AMQP_URI QUEUE COUNT

Rejects COUNT deliveries without requeue and prints each as a JSON object a line.
"""

import json
import sys

import pika


def main():
    uri, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    channel = pika.BlockingConnection(pika.URLParameters(uri)).channel()
    channel.basic_qos(prefetch_count=10)
    seen = 0
    for method, properties, _ in channel.consume(queue):
        channel.basic_reject(method.delivery_tag, requeue=False)
        print(json.dumps({"id": properties.message_id, "exchange": method.exchange}), flush=True)
        seen += 1
        if seen == count:
            break
    channel.connection.close()


if __name__ == "__main__":
    main()
