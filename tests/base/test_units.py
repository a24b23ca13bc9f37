import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.errors import UsageError
from remat_cli.units import (
    MOST_BUDGETS,
    MOST_BYTES,
    MOST_SECONDS,
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    parse_bandwidths,
    parse_budget,
    parse_budgets,
    parse_duration,
    parse_percentage,
    parse_share,
    parse_size,
    require_unit,
)

_FACTORS = {"": 1, "B": 1, "bytes": 1, "KB": 1000}
_FACTORS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTPE", 1)}
_FACTORS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTPE", 1)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("16GB", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("16gb", 16 * 10**9),
        ("16gib", 16 * 2**30),
        ("16 GB", 16 * 10**9),
        ("  1.5MiB ", 3 * 2**19),
        (".5kB", 500),
        ("5.kB", 5000),
        ("1e9", 10**9),
        ("1.2e-3MB", 1200),
        ("+7B", 7),
        ("1_000_000", 10**6),
        ("1_000.2_5kB", 1_000_250),
        ("0.1GB", 10**8),
        ("0.3B", 1),
        ("1.0001kB", 1001),
        ("0.1KiB", 103),
        (str(MOST_BYTES), MOST_BYTES),
        ("9223372036854775807B", MOST_BYTES),
        ("9.2e18", 92 * 10**17),
    ],
)
def test_sizes_are_exact_and_fractions_of_a_byte_round_up(text, expected):
    assert parse_size(text) == expected


@given(st.integers(0, MOST_BYTES), st.sampled_from(sorted(_FACTORS)), st.sampled_from(["", " "]))
def test_every_number_of_bytes_in_every_unit_reads_back_exactly(count, unit, space):
    factor = _FACTORS[unit]
    whole = count // factor
    assert parse_size(f"{whole}{space}{unit}") == whole * factor
    assert parse_size(f"{whole:_}{space}{unit.lower()}") == whole * factor


@given(st.integers(0, 79_999), st.integers(4, 8), st.sampled_from(sorted(_FACTORS)))
def test_decimal_fractions_are_exact(digits, places, unit):
    text = f"{digits // 10**places}.{digits % 10**places:0{places}d}{unit}"
    assert parse_size(text) == math.ceil(Fraction(digits, 10**places) * _FACTORS[unit])


@pytest.mark.parametrize("letter", ["K", "k", "M", "G", "g", "T", "P", "E"])
def test_a_bare_prefix_is_refused_and_both_spellings_are_shown(letter):
    with pytest.raises(UsageError, match="ambiguous") as caught:
        parse_size(f"16{letter}")
    assert f"16{letter.upper()}B" in caught.value.hint
    assert f"16{letter.upper()}iB" in caught.value.hint


def test_bits_are_refused_and_bytes_are_shown():
    for text, meant in (("5Mb", "5MB"), ("2 Gb", "2GB"), ("1.5Kib", "1.5KiB"), ("7Tib", "7TiB")):
        with pytest.raises(UsageError, match="could mean bits") as caught:
            parse_size(text)
        assert caught.value.hint == f"write {meant} for bytes"


def test_a_bare_number_is_asked_for_its_unit():
    hints = {
        "16": "write 16GB or 16GiB or 16% or 16B",
        "0.5": "write 0.5GB or 0.5GiB or 50%",
        "203424260": "write 203424260B",
        " 400 ": "write 400GB or 400GiB or 400B",
        "4GB:16:1GB": "write 16GB or 16GiB or 16% or 16B",
        "8GB,9": "write 9GB or 9GiB or 9% or 9B",
    }
    for text, hint in hints.items():
        with pytest.raises(UsageError, match="has no unit") as caught:
            require_unit(text)
        assert caught.value.hint == hint
    with pytest.raises(UsageError) as caught:
        require_unit("16", percent=False)
    assert caught.value.hint == "write 16GB or 16GiB or 16B"
    for text in ("16B", "0", "80%", "4GB:16GB:1GB", "none", "16G"):
        require_unit(text)


def test_percentages_need_their_sign_and_shares_may_have_one():
    assert parse_percentage("0.5 %") == Fraction(1, 2)
    assert parse_percentage("0") == 0
    for text, hint in (("0.005", "write 0.005% or 0.5%"), ("12", "write 12%")):
        with pytest.raises(UsageError, match="has no percent sign") as caught:
            parse_percentage(text)
        assert caught.value.hint == hint
    assert parse_share("1e-4") == parse_share("0.01%") == 1e-4
    assert parse_share("0") == 0
    for text in ("1", "100%", "5", "-0.1", "1GB"):
        with pytest.raises(UsageError) as caught:
            parse_share(text)
        assert caught.value.hint
    with pytest.raises(UsageError) as caught:
        parse_share("5")
    assert caught.value.hint == "write 5% if percent are meant"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("-1 -16GB -0.5MiB -1e3", "negative"),
        ("9223372036854775808 8192PiB 1e19 9.3e18B 1e999 1e999PB", "more than 9223372036854775807 bytes"),
    ],
)
def test_negative_sizes_and_those_that_no_machine_can_hold_are_refused(texts, message):
    for text in texts.split():
        with pytest.raises(UsageError, match=message):
            parse_size(text)


def test_a_negative_percentage_is_quoted_as_it_was_written():
    with pytest.raises(UsageError, match='"-5%" is negative'):
        parse_budget("-5%")


_NO_SIZES = "GB 16GBB 1.2.3 1__0 _1 1_ 1_.5 1._5 1e 1e1000 0x10 1,5GB nan inf infGB 1/2 ٣GB --1 1e5_0 ½GB"


@pytest.mark.parametrize("text", ["", " ", "1 6GB", "16 G B", "16GB\x00", "9" * 65, *_NO_SIZES.split()])
def test_what_is_no_size_is_refused_in_one_line_with_a_remedy(text):
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_never_more(text):
    for parse in (parse_size, parse_budget, parse_duration):
        try:
            parse(text)
        except UsageError as error:
            told = error
        else:
            continue
        assert told.message
        assert told.hint


def test_a_percentage_budget_is_floored_to_bytes():
    assert parse_budget("80%").bytes_for(10) == 8
    assert parse_budget("80%").bytes_for(11) == 8
    assert parse_budget("79.99%").bytes_for(10) == 7
    assert parse_budget("0.1%").bytes_for(999) == 0
    assert parse_budget("100%").bytes_for(MOST_BYTES) == MOST_BYTES
    assert parse_budget(" 33.333 % ").bytes_for(10**18) == 333330000000000000
    assert parse_budget("150%").bytes_for(7) == 10


def test_an_absolute_budget_is_floored_and_ignores_the_peak():
    assert parse_budget("16GB").bytes_for(1) == 16 * 10**9
    assert parse_budget("1.0001kB").bytes_for(1) == 1000  # a size would be rounded up; a limit must not
    assert parse_budget("12.5GiB").bytes_for(1) == 25 * 2**29


@given(st.integers(0, 10**6), st.integers(0, 2**62))
def test_a_percentage_never_gives_more_than_its_share(thousandths, peak):
    budget = parse_budget(f"{thousandths / 1000:.3f}%")
    if Fraction(thousandths, 100_000) * peak > MOST_BYTES:
        with pytest.raises(UsageError):
            budget.bytes_for(peak)
        return
    given_bytes = budget.bytes_for(peak)
    assert given_bytes * 100_000 <= thousandths * peak < (given_bytes + 1) * 100_000


def test_a_percentage_of_more_bytes_than_there_can_be_is_refused():
    with pytest.raises(UsageError, match=r'"1e30%" is more than'):
        parse_budget("1e30%").bytes_for(10**9)


@pytest.mark.parametrize("text", ["16G", "80%%", "%", "-5%", "80%GB", "80 GB%", "eighty%", "1e99"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(UsageError):
        parse_budget(text)


def test_a_budget_remembers_how_it_was_written():
    assert parse_budget(" 16GB ").text == "16GB"
    assert parse_budget("80%").text == "80%"
    assert parse_budget("80%").relative
    assert not parse_budget("80").relative


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60.0),
        ("60s", 60.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("500ms", 0.5),
        ("1min", 60.0),
        ("1h30m", 5400.0),
        ("1h 30m 1.5s", 5401.5),
        ("5 S", 5.0),
        ("0", 0.0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["-1s", "1d", "1:30", "30m1h", "1h1h", "1h30", "1h2d", "1h.m", "", "s", "1e400", "1e300", "300000h", "inf"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError):
        parse_duration(text)


def test_the_longest_duration_can_be_waited_for():
    assert parse_duration(str(MOST_SECONDS)) == MOST_SECONDS
    with pytest.raises(UsageError, match="longer than"):
        parse_duration(str(MOST_SECONDS + 1))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1023, "1.023 kB"),
        (1024, "1.024 kB"),
        (99_995, "100 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1 MB"),
        (2**20 - 1, "1.049 MB"),
        (2**20, "1.049 MB"),
        (15_830_000_000, "15.83 GB"),
        (10**15, "1 PB"),
        (MOST_BYTES, "9223 PB"),
    ],
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text


@given(st.integers(0, MOST_BYTES))
def test_written_bytes_read_back_to_four_digits(count):
    text = format_bytes(count)
    number = text.split()[0]
    assert abs(Fraction(number) * _FACTORS[text.split()[1]] - count) <= Fraction(count, 1999) + (count >= 1000)
    assert len(number.replace(".", "").lstrip("0")) <= 4
    if count < 1000:
        assert parse_size(text) == count


@given(st.integers(0, MOST_BYTES), st.integers(0, MOST_BYTES))
def test_written_bytes_keep_the_order(first, second):
    low, high = sorted((first, second))
    texts = [format_bytes(low).split(), format_bytes(high).split()]
    values = [Fraction(number) * _FACTORS[unit] for number, unit in texts]
    assert values[0] <= values[1]


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (1.0, "1"),
        (99_999, "99999"),
        (100_000, "100 k"),
        (999_949, "999.9 k"),
        (999_950, "1 M"),
        (1.2345e9, "1.234 G"),
        (9.9994e17, "999.9 P"),
        (1e18, "1 E"),
        (1e21, "1.000e+21"),
        (-1.5e6, "-1.5 M"),
    ],
)
def test_counts_for_people(amount, text):
    assert format_count(amount) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0%"),
        (1, "100.0%"),
        (0.25, "25.0%"),
        (12.3456, "1234.6%"),
        (0.1, "10.0%"),
        (0.09999999, "10.0%"),
        (0.0999, "9.99%"),
        (0.01, "1%"),
        (0.000531, "0.0531%"),
        (0.0001, "0.01%"),
        (0.00009999999, "0.01%"),
        (1e-5, "0.001%"),
        (-0.5, "-50.0%"),
    ],
)
def test_percentages_for_people(ratio, text):
    assert format_percent(ratio) == text


@given(st.floats(0, 1e6, allow_subnormal=False))
def test_written_percentages_are_close(ratio):
    written = float(format_percent(ratio).removesuffix("%")) / 100
    assert written == pytest.approx(ratio, rel=0.051, abs=0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.42, "0.42 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_durations_for_people(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("25GB/s", (25e9, 25e9)),
        ("25GB/s:20GB/s", (25e9, 20e9)),
        (" 1.5 GiB/s ", (1.5 * 2**30, 1.5 * 2**30)),
        ("inf", (math.inf, math.inf)),
        ("400GB/s:inf", (4e11, math.inf)),
    ],
)
def test_bandwidths(text, rates):
    assert parse_bandwidths(text) == rates


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("25GB", '"25GB" is not a bandwidth'),
        ("25/s", '"25" has no unit'),
        ("25Gb/s", "could mean bits"),
        ("0GB/s", "is zero"),
        ("25GB/s:", '"" is not a bandwidth'),
        ("-1GB/s", "is negative"),
        ("25GB/h", '"25GB/h" is not a bandwidth'),
    ],
)
def test_what_is_no_bandwidth_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_bandwidths(text)


def test_bandwidths_for_people():
    assert [format_bandwidth(rate) for rate in (25e9, 12.5e9, math.inf)] == ["25 GB/s", "12.5 GB/s", "unlimited"]


# Several budgets in one word


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("4GB:7GB:1GB", ["4GB", "5GB", "6GB", "7GB"]),
        ("4GB:7.9GB:1GB", ["4GB", "5GB", "6GB", "7GB"]),
        ("40%:50%:5%", ["40%", "45%", "50%"]),
        (" 40% : 50% : 5% ", ["40%", "45%", "50%"]),
        ("33.3%:33.5%:0.1%", ["33.3%", "33.4%", "33.5%"]),
        ("1GiB:2GiB:512MiB", ["1GiB", "1.5GiB", "2GiB"]),
        ("1GiB:1.2GiB:100MB", ["1GiB", "1173.741824MB", "1273.741824MB"]),
        ("1000:3000:1000", ["1000", "2000", "3000"]),
        ("16GB", ["16GB"]),
        ("10%:10%:1%", ["10%"]),
        ("8GB, 50% ,1GB:2GB:1GB", ["8GB", "50%", "1GB", "2GB"]),
    ],
)
def test_budgets_as_written(text, texts):
    assert [budget.text for budget in parse_budgets(text)] == texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4GB:16GB", "is not START:STOP:STEP"),
        ("4GB:16GB:1GB:1GB", "is not START:STOP:STEP"),
        ("4GB::1GB", "is not START:STOP:STEP"),
        ("4GB:16GB:0", "has a step of zero"),
        ("0%:1%:0%", "has a step of zero"),
        ("4GB:16GB:-1GB", "is negative"),
        ("16GB:4GB:1GB", "starts above its stop"),
        ("40%:16GB:1GB", "mixes percentages and bytes"),
        ("40%:80%:5", "mixes percentages and bytes"),
        ("1:1000:1", f"makes more than {MOST_BUDGETS} budgets"),
        (",".join("9" * 250), f"makes more than {MOST_BUDGETS} budgets"),
        ("4G:16G:1G", "is ambiguous"),
        ("", "has an empty entry"),
        ("4GB,,8GB", "has an empty entry"),
        ("none", "is not a size"),
    ],
)
def test_what_is_no_list_of_budgets_is_refused_with_a_remedy(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_budgets(text)
    assert caught.value.hint


@given(
    st.integers(0, 10**6),
    st.integers(1, 10**5),
    st.integers(0, MOST_BUDGETS - 1),
    st.sampled_from(["%", "B", "kB", "GiB", "MB"]),
    st.sampled_from([0, 1, 3]),
)
def test_every_budget_of_a_range_means_what_it_says(start, step, steps, unit, decimals):
    def written(number):
        return f"{number / 10**decimals:.{decimals}f}{unit}"

    budgets = parse_budgets(f"{written(start)}:{written(start + steps * step)}:{written(step)}")
    assert len(budgets) == steps + 1
    for k, budget in enumerate(budgets):
        top = 10**6 * 10**decimals
        assert budget.bytes_for(top) == parse_budget(budget.text).bytes_for(top)
        assert budget.bytes_for(top) == parse_budget(written(start + k * step)).bytes_for(top)
