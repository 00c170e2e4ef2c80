"""What is kept of rejected events: all of it, in few messages, and the same whenever it is made again."""

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from ramify.overlay.control.intake import RejectedMessage
from ramify.overlay.control.rejects import LINES_TYPE, entries

rejected_messages = st.builds(
    RejectedMessage,
    client=st.sampled_from(["a", "b c", "ü"]),
    position=st.integers(0, 3),
    event_id=st.none() | st.text(st.characters(codec="utf-8"), max_size=3),
    reason=st.sampled_from(["not_json", "no_id"]),
    detail=st.text(st.characters(codec="utf-8"), max_size=5),
    raw=st.binary(max_size=20),
)


@given(st.lists(rejected_messages, max_size=80))
def test_every_event_is_kept_once_with_its_bytes(rejected: list[RejectedMessage]) -> None:
    made = list(entries(rejected))
    assert sum(int(each.headers["Count"]) for each in made) == len(rejected)
    raws: list[bytes] = []
    for each in made:
        assert "\n" not in each.headers["Detail"]
        if each.headers.get("Content-Type") == LINES_TYPE:
            lines = [json.loads(line) for line in each.payload.splitlines()]
            assert len(lines) == int(each.headers["Count"])
            raws += [base64.b64decode(line["raw"]) for line in lines]
        else:
            raws.append(each.payload)
    assert raws == [each.raw for each in rejected]
    assert made == list(entries(rejected)), "a second try is the same"


def test_many_of_one_message_are_few_messages_and_none_is_a_repetition_of_another() -> None:
    some = [RejectedMessage("a", 7, None, "not_json", "no", b"1") for _ in range(10_000)]
    made = list(entries(some))
    assert len(made) < 20
    assert len({each.headers["Nats-Msg-Id"] for each in made}) == len(made)
    few = list(entries(some[:5]))
    assert len({each.headers["Nats-Msg-Id"] for each in few}) == 5
    large = list(entries([RejectedMessage("a", 7, None, "not_json", "no", b"x" * 65_536)] * 20))
    assert max(len(each.payload) for each in large) < 1 << 20
