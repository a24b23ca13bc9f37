"""Several budgets in one word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.errors import UsageError
from remat_cli.units import MOST_BUDGETS, parse_budget, parse_budgets


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
def test_nonsense_is_refused_with_a_remedy(text, message):
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
