from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.errors import ConfigError, TopicError
from tallygate.kafka.placement import advise, assign


def test_the_slowest_step_sets_the_count_and_brokers_round_it_up() -> None:
    advice = advise(100, consumer=20, producer=60, brokers=3, headroom=1.0)
    assert advice.partitions == 6
    assert any("so 5 must share the reading" in reason for reason in advice.reasoning)
    assert advise(100, consumer=60, producer=10, brokers=3, headroom=1.0).partitions == 12


def test_too_many_partitions_are_pointed_out() -> None:
    assert any("above 4000" in r for r in advise(100_000, consumer=10, brokers=3).reasoning)
    assert not any("above 4000" in r for r in advise(100, consumer=10, brokers=3).reasoning)


@pytest.mark.parametrize(
    "wrong", [{"target": 0.0}, {"consumer": -1.0}, {"headroom": 0.5}, {"replication": 4}]
)
def test_impossible_questions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        advise(**{"target": 10.0, "consumer": 1.0, **wrong})  # type: ignore[arg-type]


def test_nothing_moves_when_all_is_even() -> None:
    current = [[1, 2], [2, 3], [3, 1]]
    assert assign(current, dict.fromkeys([1, 2, 3])) == current


def test_a_new_broker_gets_its_share_and_a_removed_one_nothing() -> None:
    current = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]
    grown = assign(current, dict.fromkeys([1, 2, 3, 4]))
    assert Counter(b for replicas in grown for b in replicas)[4] == 3
    shrunk = assign(current, dict.fromkeys([1, 2, 4]))
    assert all(3 not in replicas for replicas in shrunk)


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(TopicError, match="replication 3 needs 3 brokers, but 2 are given"):
        assign([[1, 2, 3]], {1: None, 2: None})


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[list[int]], dict[int, str | None], int]:
    there = draw(st.lists(st.integers(1, 9), min_size=3, max_size=9, unique=True))
    size = draw(st.integers(1, 3))
    count = draw(st.integers(1, 20))
    shuffled = st.permutations(there).map(lambda order: list(order)[:size])
    current = [draw(shuffled) for _ in range(count)]
    target = draw(st.lists(st.integers(1, 12), min_size=3, max_size=12, unique=True))
    choices: list[list[str | None]] = [["a", "b", "c"], ["a"], [None]]
    racks = draw(st.sampled_from(choices))
    brokers = {number: racks[index % len(racks)] for index, number in enumerate(target)}
    return current, brokers, draw(st.integers(1, 3))


@given(_cases())
def test_every_assignment_is_whole_valid_and_rack_aware(
    case: tuple[list[list[int]], dict[int, str | None], int],
) -> None:
    current, brokers, size = case
    placed = assign(current, brokers, size)
    assert len(placed) == len(current)
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == size
        assert set(replicas) <= set(brokers)
    held = Counter(b for replicas in placed for b in replicas)
    racks = set(brokers.values())
    if len(racks) == 1:
        assert max(held.values()) - min(held[b] for b in brokers) <= 1
    elif size <= len(racks):
        fresh = assign([[] for _ in current], brokers, size)
        for replicas in fresh:
            assert len({brokers[b] for b in replicas}) == size
