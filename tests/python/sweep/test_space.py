"""Parameters as they are typed. What could break: a value that nobody asked for is tried, or one
of a grid is not."""

from __future__ import annotations

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.sweep.space import (
    Choices,
    Parameter,
    Range,
    check_placeholders,
    fill_in,
    grid,
    grid_size,
    parse_space,
    text_of,
)


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("x=32,64,128", Choices(("32", "64", "128"))),
        ("x=adam", Choices(("adam",))),
        ("x=a:log,b=c", Choices(("a:log", "b=c"))),
        ("x=1..8", Range(1, 8)),
        ("x=-4..+4", Range(-4, 4)),
        ("x=1e-4..1e-1:log", Range(1e-4, 1e-1, log=True)),
        ("x=16..256:log", Range(16, 256, log=True)),
        ("x=0..1.", Range(0.0, 1.0)),
        ("x=.1...5", Range(0.1, 0.5)),
        ("x=0..10:step=5", Range(0, 10, step=5)),
        ("x=0..1:step=0.25", Range(0.0, 1.0, step=0.25)),
    ],
)
def test_a_parameter_is_what_was_typed(text: str, parameter: Parameter) -> None:
    assert parse_space([text]) == {"x": parameter}


@pytest.mark.parametrize("text", ["1..8", "0.0..1.0:step=0.25", "0.0001..0.1:log", "a,b"])
def test_a_parameter_can_be_written_back(text: str) -> None:
    assert str(parse_space([f"x={text}"])["x"]) == text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "nothing to search"),
        (["x"], "write a name and its values"),
        (["1x=1,2"], "write a name and its values"),
        (["x=1,2", "x=3,4"], "--param x is given twice"),
        (["value=1,2"], "'value' is a column of results.csv"),
        (["trial=1,2"], "'trial' is a column"),
        (["x="], "a choice is empty"),
        (["x=1,,2"], "a choice is empty"),
        (["x=1,2,1"], "a choice is there twice"),
        (["x=a..b"], "from a number to a number"),
        (["x=1..nan"], "from a number to a number"),
        (["x=1..1e999"], "too large"),
        (["x=2..1"], "before it has begun"),
        (["x=1..1"], "before it has begun"),
        (["x=0..1:log"], "begins above 0"),
        (["x=1..9:log:step=2"], "do not go together"),
        (["x=1..9:lgo"], "':lgo' is neither :log nor :step=NUMBER"),
        (["x=1..9:step"], "':step' is neither"),
        (["x=1..9:step=0"], "more than 0"),
        (["x=1..9:step=9"], "at most the range's length"),
    ],
)
def test_a_mistake_is_answered_by_a_sentence(given: list[str], sentence: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_space(given)
    assert sentence in str(caught.value)


def test_a_grid_has_each_combination_once() -> None:
    space = parse_space(["a=x,y", "b=1..3", "c=0..0.3:step=0.1"])
    points = [tuple(each.values()) for each in grid(space)]
    assert len(points) == len(set(points)) == grid_size(space) == 24
    assert points[:5] == [
        *(("x", 1, 0.0), ("x", 1, 0.1), ("x", 1, 0.2), ("x", 1, 0.3)),
        ("x", 2, 0.0),
    ]


def test_a_step_that_misses_the_end_stops_before_it() -> None:
    assert list(Range(1, 8, step=3).values()) == [1, 4, 7]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["x=0.1..0.5"], "x=0.1..0.5 has no end of values"),
        (["x=1..1000", "y=1..1000"], "1,000,000 combinations"),
    ],
)
def test_a_grid_without_an_end_is_refused(given: list[str], sentence: str) -> None:
    with pytest.raises(LaunchError) as caught:
        grid_size(parse_space(given))
    assert sentence in str(caught.value)


def test_placeholders_become_values_and_other_braces_stay() -> None:
    command = ["train.py", "--lr={lr}", "{trial}-{lr}", '{"a": 1}', "{}", "{3,4}"]
    filled = fill_in(command, {"lr": 0.1 + 0.2}, 7)
    assert filled == ("train.py", "--lr=0.3", "7-0.3", '{"a": 1}', "{}", "{3,4}")


def test_a_number_keeps_the_digits_of_a_float32() -> None:
    assert [text_of(each) for each in (0.00031622776601, 3, "1e-03", 1e-7)] == [
        *("0.0003162278", "3", "1e-03", "1e-07")
    ]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["train.py", "{lr}", "{batch}"], "the command has {batch}, and there is no --param"),
        (["train.py", "--lr", "lr"], "--param lr is used nowhere"),
    ],
)
def test_parameters_and_placeholders_must_match(command: list[str], sentence: str) -> None:
    with pytest.raises(LaunchError) as caught:
        check_placeholders(command, parse_space(["lr=1,2"]))
    assert sentence in str(caught.value)
