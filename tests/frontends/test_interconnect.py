"""Bandwidths between ranks as people write them, and the times of collectives on them."""

import pytest

from remat_cli.errors import UsageError
from remat_cli.frontends.interconnect import SHARES, Interconnect


def test_one_bandwidth_is_for_all_dimensions():
    link = Interconnect.of("400GB/s")
    assert link.bytes_per_s == {"": 400e9}
    assert link.us("broadcast", 4_000_000, 8, "tp") == pytest.approx(10)
    assert link.document() == {"algorithm": "ring", "bytes_per_s": {"all": 400e9}}


def test_dimensions_have_bandwidths_of_their_own():
    link = Interconnect.of("fsdp=50GB/s, tp = 400GB/s")
    assert link.bytes_per_s == {"fsdp": 50e9, "tp": 400e9}
    assert link.us("all-gather", 1000, 2, "fsdp") == pytest.approx(8 * link.us("all-gather", 1000, 2, "tp"))
    with pytest.raises(UsageError, match='over the dimension "dp" of the mesh, and no bandwidth is given'):
        link.us("all-gather", 1000, 2, "dp")
    with pytest.raises(UsageError, match="over a group of 3 ranks that is no dimension of the mesh"):
        link.us("all-gather", 1000, 3, "")


def test_a_latency_takes_the_place_of_a_launch():
    link = Interconnect.of("fsdp=50GB/s+20us, tp=400GB/s")
    assert link.latency_us == {"fsdp": pytest.approx(20)}
    assert link.us("broadcast", 50_000, 8, "fsdp", 3.0) == pytest.approx(21)
    assert link.us("broadcast", 400_000, 8, "tp", 3.0) == pytest.approx(4)
    assert link.us("all-gather", 400_000, 1, "fsdp", 3.0) == 3.0, "nothing is sent"
    assert link.document()["latency_us"] == {"fsdp": pytest.approx(20)}
    assert link.text() == "fsdp=50GB/s+20us,tp=400GB/s"
    assert Interconnect.of(link.text()) == link
    assert Interconnect.of("1GB/s+1.5ms").latency_us == {"": pytest.approx(1500)}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 256])
def test_a_ring_sends_what_its_steps_send(ranks):
    """Every step of a ring sends the n-th part of a tensor to the next rank."""
    part, steps = 1 / ranks, ranks - 1
    assert SHARES["all-gather"](ranks) == SHARES["reduce-scatter"](ranks) == pytest.approx(steps * part)
    assert SHARES["all-reduce"](ranks) == pytest.approx(2 * steps * part), "a reduce-scatter, and an all-gather"
    assert SHARES["all-to-all"](ranks) == pytest.approx(steps * part), "each rank keeps its own part"
    assert SHARES["broadcast"](ranks) == (0 if ranks == 1 else 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", '"fast" is not a bandwidth'),
        ("400GB", '"400GB" is not a bandwidth'),
        ("", '"" is not a bandwidth'),
        ("0GB/s", 'the bandwidth "0GB/s" is zero'),
        ("inf", "an interconnect has a bandwidth, and inf is none"),
        ("50GB/s,400GB/s", '"50GB/s,400GB/s" is not an interconnect'),
        ("tp=1GB/s,tp=2GB/s", '"tp=1GB/s,tp=2GB/s" is not an interconnect'),
        ("=50GB/s", '"=50GB/s" is not an interconnect'),
        ("tp=", '"" is not a bandwidth'),
        ("50GB/s+", 'the latency "" has no unit'),
        ("50GB/s+20", 'the latency "20" has no unit'),
        ("50GB/s+fast", '"fast" is not a duration'),
        ("50GB+20us", '"50GB+20us" is not a bandwidth'),
    ],
)
def test_what_is_no_interconnect(text, message):
    with pytest.raises(UsageError) as caught:
        Interconnect.of(text)
    assert caught.value.message == message
    assert caught.value.hint


def test_names_have_to_be_dimensions():
    link = Interconnect.of("fsdp=50GB/s,tp=400GB/s")
    link.require_dimensions(["tp", "fsdp", "pp"])
    Interconnect.of("50GB/s").require_dimensions([])
    with pytest.raises(UsageError, match='has no dimension "tp": its dimensions are dp, fsdp'):
        link.require_dimensions(["fsdp", "dp"])
    with pytest.raises(UsageError, match='has no dimension "fsdp": the dimensions of its mesh have no names'):
        link.require_dimensions([])
