from dataclasses import dataclass, field, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.errors import UsageError
from remat_cli.solvers.registry import SOLVERS
from remat_cli.spec import build, describe_options, format_spec, options_of, split_spec
from remat_cli.strategies.registry import STRATEGIES
from remat_cli.zoo.registry import ARCHITECTURES


@dataclass(frozen=True, slots=True)
class Sample:
    """One option of every kind."""

    count: int = 3
    ratio: float = 0.5
    greedy: bool = True
    room: int = field(default=1024, metadata={"unit": "bytes", "help": "how much"})
    rule: str = field(default="first", metadata={"choices": ("first", "best"), "help": "which"})
    path: str | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UsageError("count is negative", hint="use 0 or more")


@dataclass(frozen=True, slots=True)
class Required:
    """An option without a default."""

    n: int


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("auto", "auto", {}),
        ("  auto  ", "auto", {}),
        ("auto{}", "auto", {}),
        ("chen-greedy{b=2GB}", "chen-greedy", {"b": "2GB"}),
        ("a{ b = 1 , c = x y }", "a", {"b": "1", "c": "x y"}),
        ("a {b=1}", "a", {"b": "1"}),
        ("a{b=1,}", "a", {"b": "1"}),
        ("cbc{path=/opt/x=y/cbc}", "cbc", {"path": "/opt/x=y/cbc"}),
        ("a{b=x{c=1}}", "a", {"b": "x{c=1}"}),
    ],
)
def test_name_and_options_are_split(text, name, options):
    assert split_spec(text) == (name, options)


@pytest.mark.parametrize(
    "text", ["", "{}", "{a=1}", "a{b=1", "a}b", "a{b}", "a{=1}", "a{b=}", "a b", "-a", "a{b=1}x", "a{b=1;c}}{"]
)
def test_what_is_no_spec_is_refused_with_a_remedy(text):
    with pytest.raises(UsageError) as caught:
        split_spec(text)
    assert caught.value.hint


def test_an_option_given_twice_is_refused():
    with pytest.raises(UsageError, match=r'option "b" comes twice in "a\{b=1,b=2\}"'):
        split_spec("a{b=1,b=2}")


def test_every_kind_of_option_is_read():
    text = "sample{count=7,ratio=0.25,greedy=off,room=2kB,rule=best,path=/x,depth=4}"
    name, options = split_spec(text)
    assert build(Sample, name, options) == Sample(7, 0.25, False, 2000, "best", "/x", 4)


@pytest.mark.parametrize("word", ["none", "auto", "None", "AUTO"])
def test_optional_options_can_be_unset(word):
    assert build(Sample, "sample", {"path": word, "depth": word}) == Sample()


@pytest.mark.parametrize(("word", "meant"), [("true", True), ("YES", True), ("1", True), ("no", False), ("0", False)])
def test_booleans_have_several_words(word, meant):
    assert build(Sample, "sample", {"greedy": word}).greedy is meant


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"ration": "1"}, 'sample has no option "ration"', 'did you mean "ratio"?'),
        ({"zzz": "1"}, "sample has no option", "options of sample: count, ratio, greedy, room, rule, path, depth"),
        ({"rule": "worst"}, "not a choice", "choose one of first, best"),
        ({"room": "2G"}, "ambiguous", ""),
        ({"count": "-1"}, "count is negative", "use 0 or more"),  # the class has the last word
    ],
)
def test_what_cannot_be_built_is_refused_with_a_remedy(options, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        build(Sample, "sample", options)
    assert caught.value.hint == (hint or caught.value.hint)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("count", "1.5", "a whole number"),
        ("count", "many", "a whole number"),
        ("ratio", "half", "a finite number"),
        ("ratio", "nan", "a finite number"),
        ("ratio", "inf", "a finite number"),
        ("greedy", "perhaps", "true or false"),
        ("rule", "worst", "not a choice"),
        ("depth", "deep", "a whole number"),
    ],
)
def test_bad_values_name_the_option_and_the_value(option, value, words):
    with pytest.raises(UsageError, match=words) as caught:
        build(Sample, "sample", {option: value})
    assert f"sample{{{option}}}" in caught.value.message
    assert f'"{value}"' in caught.value.message


def test_a_missing_option_without_default_is_a_usage_error():
    with pytest.raises(UsageError, match=r"required\{n\} is missing") as caught:
        build(Required, "required", {})
    assert "required{n=" in caught.value.hint


@given(
    st.builds(
        Sample,
        count=st.integers(0),
        ratio=st.floats(allow_nan=False, allow_infinity=False),
        greedy=st.booleans(),
        room=st.integers(0, 2**63 - 1),
        rule=st.sampled_from(["first", "best"]),
        path=st.none() | st.from_regex(r"/[\w./=-]{1,20}", fullmatch=True),
        depth=st.none() | st.integers(),
    )
)
def test_text_form_round_trips(instance):
    text = format_spec("sample", instance)
    name, options = split_spec(text)
    assert build(Sample, name, options) == instance
    assert set(options) == {f.name for f in fields(Sample) if getattr(instance, f.name) != f.default}


def test_text_form_is_shortest():
    assert format_spec("sample", Sample()) == "sample"
    assert format_spec("sample", Sample(greedy=False, room=2000)) == "sample{greedy=false,room=2000}"


def test_options_are_told_with_values_and_help():
    assert options_of(Sample(count=1))["count"] == 1
    assert ("room", "1024", "how much") in describe_options(Sample)
    assert ("path", "none", "") in describe_options(Sample)
    assert describe_options(Required) == [("n", "", "")]


_CLASSES = [
    pytest.param(registry.load(name), id=f"{registry.kind}-{name}")
    for registry in (STRATEGIES, SOLVERS, ARCHITECTURES)
    for name in registry.names()
]


@pytest.mark.parametrize("cls", _CLASSES)
def test_every_option_of_every_registered_class_has_help_and_reads_its_own_default(cls):
    plain = cls()
    assert build(cls, cls.name, {}) == plain
    for name, default, text in describe_options(cls):
        assert text, f"{cls.name}{{{name}}} has no help"
        assert build(cls, cls.name, {name: default}) == plain
    assert format_spec(cls.name, plain) == cls.name
