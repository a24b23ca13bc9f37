"""Ways to damage files, beside those of ``mangling``: bytes, texts that terminals obey, keys that occur twice."""

import base64
import copy
import json
from typing import Any

from hypothesis import strategies as st
from mangling import spoiled, spoiled_text, to_yaml

_TEXTS = (
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "a\u2028::error::b",
    "\x00",
    "x\r\ny",
    "\u202eabc",
    "id:0",
    "=1+1",
    "0B",
)
_NUMBERS = (2**60, 2**63 - 1, 2**63, -1, 0, 10**30, 5e-324, 1e308, 0.1)


@st.composite
def damaged_data(draw: st.DrawFn, data: Any) -> Any:
    """``data`` with some values replaced, removed, renamed or moved, and some texts and numbers made hostile."""
    if draw(st.integers(0, 2)):
        data = draw(spoiled(data))
    else:
        data = copy.deepcopy(data)
        for _ in range(draw(st.integers(1, 2))):
            _replace_leaf(draw, data)
    return data


def _replace_leaf(draw: st.DrawFn, data: Any) -> None:
    """Replace one text or number somewhere inside by a hostile one."""
    for _ in range(20):
        keys = sorted(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if not keys:
            return
        key = draw(st.sampled_from(list(keys)))
        if isinstance(data[key], dict | list) and data[key]:
            data = data[key]
            continue
        data[key] = draw(st.sampled_from(_TEXTS if isinstance(data[key], str) else (*_NUMBERS, *_TEXTS)))
        return


@st.composite
def damaged_document(draw: st.DrawFn, data: Any, format: str) -> bytes:
    """A JSON or YAML document with damage to its values, its text or its bytes."""
    level = draw(st.sampled_from(["values", "values", "values", "text", "text", "bytes", "keys", "depth"]))
    if level == "values":
        data = draw(damaged_data(data))
    text = json.dumps(data) if format == "json" else to_yaml(data)
    if level == "text":
        text = draw(spoiled_text(text))
    elif level == "keys":
        at = draw(st.integers(0, text.count(": ") - 1))
        parts = text.split(": ")
        text = ": ".join([*parts[: at + 1], *parts[at:]])
    elif level == "depth":
        opening, closing = draw(st.sampled_from([("[", "]"), ('{"a":', "}"), ("- ", ""), ("? ", "")]))
        depth = draw(st.sampled_from([10, 1000, 20_000]))
        text = text.replace("0", opening * depth + "0" + closing * depth, 1)
    raw = text.encode("utf-8", "surrogatepass")
    return draw(damaged_bytes(raw)) if level == "bytes" else raw


@st.composite
def damaged_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    """``raw`` with one to four bytes or runs of bytes changed, removed, doubled or put in, or cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        end = at + draw(st.integers(1, 8))
        change = draw(st.sampled_from(["set", "set", "flip", "remove", "insert", "double", "cut"]))
        if change == "set":
            raw = raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
        elif change == "flip":
            raw = raw[:at] + bytes([(raw[at] if raw else 0) ^ 1 << draw(st.integers(0, 7))]) + raw[at + 1 :]
        elif change == "remove":
            raw = raw[:at] + raw[end:]
        elif change == "insert":
            raw = raw[:at] + draw(st.binary(min_size=1, max_size=6)) + raw[at:]
        elif change == "double":
            raw = raw[:end] + raw[at:]
        else:
            raw = raw[:at]
    return raw


def as_text(raw: bytes) -> str:
    """Bytes as a case holds them: text where they are, else in base64."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode("ascii")


def as_bytes(text: str) -> bytes:
    """What :func:`as_text` made text of."""
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode("utf-8")
