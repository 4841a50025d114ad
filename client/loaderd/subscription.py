"""One cursor of this trainer: what comes for it, as views or copies, and its credits."""

from __future__ import annotations

from loaderd.connection import Connection
from loaderd.place import Place
from loaderd.views import Arrival, Bytes, Views, release_of
from loaderd_protocol.codec import encode
from loaderd_protocol.errors import ERROR_CLASSES, ErrorCode, ProtocolError
from loaderd_protocol.messages import (
    Announce,
    BatchEmpty,
    BatchFailed,
    Done,
    EpochEnded,
    EpochStarted,
    Granted,
    Refused,
    Start,
    Subscribe,
    Subscribed,
)
from loaderd_protocol.rules import Message


class Subscription:
    """A subscription, used by one iterator at a time and then by the next."""

    def __init__(self, connection: Connection, number: int, request: Subscribe) -> None:
        self.connection = connection
        self.number = number
        self.iteration = 0
        self.stream = request.stream
        self.credits = 0
        #: How much of the last iteration was given out, where that counts: in a queue.
        self.given = 0
        #: Why it has ended: nothing comes any more, and whoever asks is told once more.
        self._refused: Refused | None = None
        self._views = Views(connection.lease, connection.open_arena)
        connection.expect(number)
        connection.send(request)

    def opened(self) -> Subscribed:
        """Waits for the daemon's answer to Subscribe.

        Raises: UnknownStream, SubscriptionRefused, StreamEnded.
        """
        message = self._receive(f"the subscription to stream {self.stream!r}")
        if not isinstance(message, Subscribed):
            raise ProtocolError(f"Subscribe was answered by {type(message).__name__}")
        self.credits = message.credits
        return message

    def start(self, place: Place, batch: int) -> int:
        """Puts the cursor at a place, which lies in this batch of the stream; returns the iteration.

        What still comes of earlier iterations is given back.
        """
        self.iteration += 1
        self.connection.send(
            Start(
                self.number, self.iteration, place.epoch, batch, place.where, place.dealt,
                place.failed, place.done, self.given, place.states,
            )
        )  # fmt: skip
        self.given = 0
        return self.iteration

    def done(self, count: int, *, leaves: bool = False) -> None:
        """Of this iteration, the trainer is done with so much. Safe in a finalizer."""
        self.given = count
        said = Done(self.number, self.iteration, count, leaves)
        self.connection.lease.release(encode(said))

    def gave(self, count: int) -> None:
        """Of a queue, so much was given out; if the lease ends now, it was done with."""
        self.connection.lease.done[self.number] = Done(self.number, self.iteration, count)

    def discard(self) -> None:
        """Gives back what came and was not taken. Safe in a finalizer."""
        inbox = self.connection.inbox(self.number)
        for _ in range(len(inbox)):
            message = inbox.popleft()
            if isinstance(message, Announce | BatchFailed | BatchEmpty):
                self.give_back(message)
            elif isinstance(message, Granted):
                self.credits = message.credits
            elif isinstance(message, Refused):
                inbox.append(message)

    def next(self, what: str) -> Arrival | EpochStarted | EpochEnded:
        """What comes next of the iteration that was started last."""
        while True:
            message = self._receive(what)
            if isinstance(message, EpochStarted | EpochEnded):
                if message.iteration == self.iteration:
                    return message
            elif isinstance(message, Announce | BatchFailed | BatchEmpty):
                if message.iteration == self.iteration:
                    return message
                self.give_back(message)

    def give_back(self, arrival: Arrival) -> None:
        """Releases what is not wanted, or carried no slot."""
        self.connection.lease.release(release_of(arrival))

    def bytes_of(self, announce: Announce, always_copy: bool) -> tuple[Bytes, bool]:
        """The slot's bytes, and whether they are a copy.

        One credit must stay free of views: else the trainer would wait for itself.
        """
        views = self._views
        if always_copy or views.copies_only or len(views.alive) >= self.credits - 1:
            return views.copy(announce), True
        view = views.view(announce)
        return (views.copy(announce), True) if view is None else (view, False)

    def _receive(self, what: str) -> Message:
        while self._refused is None:
            message = self.connection.receive(self.number, what)
            if isinstance(message, Granted):
                self.credits = message.credits
            elif isinstance(message, Refused):
                self._refused = message
            else:
                return message
        raise ERROR_CLASSES[ErrorCode(self._refused.code)](self._refused.text)
