"""The order of events, against a model: whatever comes first, each event is given out once and in its turn."""

from __future__ import annotations

import base64
import os
import random
from typing import Any

import pytest

import execagent
from execagent._order import Closed, Event, Exited, Order, Output
from execagent._process import Kept
from execagent._record import Record, decode, fast_output


def answer(events: list[Event], after: int, last: int) -> Record:
    """Return the answer to a process/read of a server that has the events up to last."""
    known = [event for event in events if event.seq <= last]
    exit_ = next((event for event in known if isinstance(event, Exited)), None)
    chunks = [
        {"seq": e.seq, "stream": e.stream, "chunk": base64.b64encode(e.data).decode()}
        for e in known
        if isinstance(e, Output) and e.seq > after
    ]
    return Record(
        "read",
        {
            "chunks": chunks,
            "nextSeq": last + 1,
            "exited": exit_ is not None,
            "exitCode": None if exit_ is None else exit_.exit_code,
            "closed": any(isinstance(event, Closed) for event in known),
            "failure": None,
        },
    )


def test_model() -> None:
    random.seed(7)
    for _ in range(3000):
        count = random.randrange(1, 12)
        exit_at = random.randrange(1, count + 1)
        events: list[Event] = [
            Exited(seq, 3) if seq == exit_at else Output(seq, "stdout", b"%d" % seq) for seq in range(1, count + 1)
        ]
        events.append(Closed(count + 1))
        order = Order("p")
        given: list[Event] = []

        def publish(event: Event, order: Order = order, given: list[Event] = given) -> None:
            order.publish(event)
            given.append(event)

        coming = events.copy()
        while not order.closed:
            if random.random() < 0.4:
                last = random.randrange(0, count + 2)
                merged, failure = order.merge(answer(events, order.last, last))
                assert failure is None
                for event in merged:
                    publish(event)
            elif coming:
                event = coming.pop(random.randrange(len(coming)) if random.random() < 0.5 else 0)
                if event.seq == order.last + 1:
                    publish(event)
                else:
                    order.hold(event)
            while (waiting := order.next()) is not None:
                publish(waiting)
        assert given == events
        assert not order.pending


def test_kept_output() -> None:
    """Of a stream the first half and the last half are kept, and what is left out is counted."""
    random.seed(8)
    for _ in range(2000):
        limit, strict = random.randrange(0, 40), random.random() < 0.3
        kept = Kept(limit, "error" if strict else None)
        pieces = [os.urandom(random.randrange(0, 15)) for _ in range(random.randrange(0, 8))]
        whole = b"".join(pieces)
        by_agent = random.randrange(0, 3)
        try:
            for i, piece in enumerate(pieces):
                kept.take(Output(i + 1, "stdout", piece, by_agent))
        except execagent.OutputLimitError as error:
            assert strict and len(whole) > limit and error.stdout == whole[:limit]
            continue
        half = limit - limit // 2
        left_out = max(0, len(whole) - limit)
        assert not (strict and left_out)
        assert kept.stdout == (whole if not left_out else whole[:half] + whole[len(whole) - limit // 2 :])
        assert kept.omitted == (left_out + by_agent * len(pieces), 0) and kept.stderr == b""


def test_bounds() -> None:
    order = Order("p")
    for seq in range(2, 1000):
        order.hold(Output(seq, "stdout", b"x"))
    assert len(order.pending) == 256 and order.behind
    order = Order("p")
    for seq in range(2, 100):
        order.hold(Output(seq, "stdout", b"x" * 100_000))
    assert sum(len(e.data) for e in order.pending.values() if isinstance(e, Output)) <= 1 << 20


def test_attach_skips() -> None:
    events: list[Event] = [Output(5, "stdout", b"e"), Exited(6, 0), Closed(7)]
    order = Order("p", fresh=True)
    merged, _ = order.merge(answer(events, 0, 7))
    assert merged == events and order.skipped == 4
    # The exit may be among the skipped events: it comes late rather than never.
    late = Record("read", {"chunks": [], "nextSeq": 9, "exited": True, "exitCode": 1, "closed": True})
    order = Order("p", fresh=True)
    merged, _ = order.merge(late)
    assert merged == [Exited(7, 1), Closed(8)]


@pytest.mark.parametrize("text", ["", "a", "a\\", "Z" * 70_000])
def test_fast_path(text: str) -> None:
    """The quick reader of output gives what the JSON parser gives, or nothing."""
    chunk = base64.b64encode(text.encode()).decode()
    message = (
        '{"method":"process/output","params":{"processId":"p","seq":12,"stream":"stderr","chunk":"' + chunk + '"}}'
    ).encode()
    assert fast_output(message) == ("p", 12, "stderr", text.encode())
    params: dict[str, Any] = decode(message)["params"]
    assert params["chunk"] == chunk
    for broken in (
        message[:-1],
        message + b" ",
        message.replace(b'"p"', b'"p\\n"'),
        message.replace(b'"chunk":"', b'"chunk":"","chunk":"'),
        message.replace(b":12", b":1.5"),
        message.replace(b'"}}', b'","x":"AAAA"}}'),
        message.replace(b'"}}', b'A"}}'),
    ):
        if fast_output(broken) is not None:
            assert fast_output(broken) == fast_output(message), broken
    with pytest.raises(execagent.ProtocolError):
        Record("x", {"a": 1}).text("a")
