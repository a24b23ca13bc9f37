"""The decorator of tests over many seeds: it tells which seed failed, and which branch was hardly taken."""

import inspect
from collections.abc import Iterator

import pytest
from seeded import seeded


def test_every_seed_runs_and_other_arguments_stay() -> None:
    seen = []

    @seeded(range(3))
    def case(name: str, seed: int) -> None:
        seen.append((name, seed))

    case("a")
    assert seen == [("a", 0), ("a", 1), ("a", 2)]
    assert list(inspect.signature(case).parameters) == ["name"]


def test_a_failure_says_with_which_seed() -> None:
    @seeded(range(5))
    def case(seed: int) -> None:
        assert seed < 3

    with pytest.raises(AssertionError) as caught:
        case()
    assert caught.value.__notes__ == ["with seed 3"]


@pytest.mark.parametrize(("least", "message"), [({"even": 4}, "so often: {'even': 3}"), ({}, "nobody said how often")])
def test_a_branch_that_is_hardly_taken_or_not_named_fails(least: dict[str, int], message: str) -> None:
    @seeded(range(5), **least)
    def case(seed: int) -> Iterator[str]:
        if seed % 2 == 0:
            yield "even"

    with pytest.raises(AssertionError, match=message):
        case()
