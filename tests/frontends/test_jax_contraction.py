"""Contraction keeps what a step computes: groups, run one by one on numbers, give what the equations give."""

import random

import pytest

from remat_cli.frontends.jax.capture.contraction import Item, contracted, members_of


def random_step(seed):
    """Equations over random earlier results, their sizes, and some outputs."""
    source = random.Random(seed)
    items, sizes = [], {}
    made = 0
    for index in range(source.randint(1, 40)):
        reads = tuple(source.sample(range(made), min(made, source.randint(0, 3))))
        makes = tuple(range(made, made + source.choice([1, 1, 1, 2])))
        made += len(makes)
        for variable in makes:
            sizes[variable] = source.choice([0, 4, 4096, 8192, 1 << 20])
        kind = source.choice(["cheap", "cheap", "reduction", "heavy"])
        items.append(Item(reads, makes, kind == "cheap", kind == "reduction", index > 20))
    outputs = frozenset(source.sample(range(made), source.randint(1, min(4, made))))
    needed = set(outputs)
    kept = []
    for item in reversed(items):
        if needed.intersection(item.makes):
            needed.update(item.reads)
            kept.append(item)
    return kept[::-1], sizes, outputs


def result(item, made, values):
    return hash((item.makes, made, tuple(values[read] for read in item.reads)))


@pytest.mark.parametrize("seed", range(300))
def test_groups_compute_what_the_equations_compute(seed):
    items, sizes, outputs = random_step(seed)
    wanted: dict[int, int] = {}
    for item in items:
        wanted |= {made: result(item, made, wanted) for made in item.makes}
    groups = contracted(items, sizes, outputs)
    found: dict[int, int] = {}
    computed = set()
    for group, members in zip(groups, members_of(items, groups), strict=True):
        inside = {read: found[read] for read in group.reads}
        for index in members:
            inside |= {made: result(items[index], made, inside) for made in items[index].makes}
        for made in group.makes:
            assert made not in found
            found[made] = inside[made]
        computed.update(members)
    assert all(found[made] == wanted[made] for made in found)
    assert outputs <= set(found)
    assert computed == set(range(len(items)))
    heavy = [i for i, item in enumerate(items) if not item.cheap]
    assert all(sum(i in members for members in members_of(items, groups)) == 1 for i in heavy)


def test_an_activation_is_computed_again_by_its_readers():
    """Product, activation, product; in the backward pass both its sign and its value are read."""
    large = 1 << 20
    items = [
        Item((), (0,)),
        Item((0,), (1,), cheap=True),
        Item((1,), (2,)),
        Item((2, 1), (3,), backward=True),
        Item((3, 0), (4,), cheap=True, backward=True),
        Item((4,), (5,), backward=True),
    ]
    groups = contracted(items, dict.fromkeys(range(6), large), frozenset({5}))
    assert [group.makes for group in groups] == [{0}, {2}, {4}, {5}]
    assert members_of(items, groups) == [[0], [1, 2], [1, 3, 4], [5]]


def test_sums_of_residuals_do_not_pile_up():
    """Every block adds a product to the stream, which the backward pass reads: the stream is kept, not its summands."""
    items, stream = [Item((), (0,))], 0
    variable, streams = 1, [0]
    for _ in range(6):
        items.append(Item((stream,), (variable,)))
        items.append(Item((stream, variable), (variable + 1,), cheap=True))
        stream, variable = variable + 1, variable + 2
        streams.append(stream)
    for read in reversed(streams):
        items.append(Item((read, variable - 1), (variable,), backward=True))
        variable += 1
    groups = contracted(items, dict.fromkeys(range(variable), 1 << 20), frozenset({variable - 1}))
    assert max(len(group.reads) for group in groups) == 2
    assert len(groups) == 1 + 6 + 7


def test_a_mean_joins_what_it_is_the_mean_of():
    items = [Item((), (0,)), Item((0,), (1,), reduction=True), Item((0, 1), (2,))]
    groups = contracted(items, {0: 1 << 20, 1: 64, 2: 1 << 20}, frozenset({2}))
    assert [group.makes for group in groups] == [{0, 1}, {2}]


def test_a_cast_to_less_is_kept_and_its_source_is_not():
    items = [Item((), (0,)), Item((0,), (1,), cheap=True), Item((1,), (2,)), Item((1, 2), (3,), backward=True)]
    groups = contracted(items, {0: 4 << 20, 1: 2 << 20, 2: 4, 3: 4}, frozenset({3}))
    assert groups[0].makes == {1}
