"""Tests over many seeds as one case, which says how often each branch that makes it worth while was taken."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def seeded(seeds: Iterable[int], **least: int) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A decorator that runs a test with ``seed=`` each of ``seeds``; a failure says with which.

    A test that is a generator yields the name of a branch each time it is taken. Over all seeds together every branch
    is taken at least as often as ``least`` says, or the test fails: it compared less than it seems to.
    """
    chosen = tuple(seeds)

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @wraps(test)
        def run(*arguments: Any, **named: Any) -> None:
            taken: Counter[str] = Counter()
            for seed in chosen:
                try:
                    taken.update(test(*arguments, seed=seed, **named) or ())
                except BaseException as error:
                    error.add_note(f"with seed {seed}")
                    raise
            assert taken.keys() <= least.keys(), f"nobody said how often: {taken.keys() - least.keys()}"
            rare = {name: taken[name] for name, count in least.items() if taken[name] < count}
            assert not rare, f"taken only so often: {rare}, of {least}"

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name != "seed"]
        del run.__wrapped__  # pytest would ask the test itself for its fixtures, and find that it is a generator
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined] - functions may have one
        return run

    return decorate
