"""The workers' broker on Redis: kombu's transport, but for a message that cannot be acknowledged because Redis is away.

Kombu counts such a message as being worked on for ever. A worker that takes one at a time then asks for no other, and
so never finds out that its connection is gone: it stands still, also when Redis is back. Here it counts as done with;
Redis, which knows nothing of that, gives it out again after the visibility timeout.
"""

from kombu.transport import redis, virtual


class QoS(redis.QoS):
    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except Exception:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue=requeue)
        except Exception:
            virtual.QoS.ack(self, delivery_tag)
            raise


class Channel(redis.Channel):
    QoS = QoS


class Transport(redis.Transport):
    Channel = Channel
