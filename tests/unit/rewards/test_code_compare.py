"""The written rules of comparison, line by line."""

import json

import pytest

from scalerl.rewards.code_compare import same_output, same_value

SAME = [
    ("6\n", "6"),
    ("6", "6\n\n"),
    ("1 2 \n3\n", "1 2\n3"),
    ("1   2\t3", "1 2 3"),
    ("6\r\n7\r\n", "6\n7\n"),
    ("3.0", "3"),
    ("3", "3.0"),
    ("0.3333333333", "0.333333"),
    ("0.33333333", "0.3333333333333333"),
    ("1e-9", "1.0000001e-9"),
    ("1000000.4", "1000000.0"),
    ("-0.0", "0.0"),
    ("0.0000001", "0.000000"),
    ("YES\n", "YES"),
    ("9" * 5000, "9" * 5000),
    ("", ""),
]
DIFFERENT = [
    ("7", "6"),
    ("", "6"),
    ("6\n6", "6"),
    ("1 2 3", "1\n2\n3"),
    ("1\n2", "2\n1"),
    ("\n6", "6"),
    ("yes", "YES"),
    ("10", "0010"),  # binary strings
    ("10.0", "0010"),
    ("007", "7"),
    ("+7", "7"),
    ("0.33", "0.3333333333"),
    ("0.3333", "0.33"),
    ("0.0000001", "0.0000002"),
    ("2e-9", "1e-9"),
    ("0.000000001", "0.000000002"),
    ("3.00001", "3"),
    ("1000000000000000001", "1000000000000000000"),
    ("1000000000000000000.5", "1000000000000000001"),
    ("nan", "1.0"),
    ("inf", "1.0"),
    ("1_000", "1000.0"),
    ("٣", "3.0"),  # only ASCII digits are numbers
    ("1e9999", "1.0"),
    ("1e999999999999", "1.0"),
    ("9" * 5000, "9" * 5001),
]


@pytest.mark.parametrize(("got", "expected"), SAME)
def test_same_output(got: str, expected: str) -> None:
    assert same_output(got, expected)


@pytest.mark.parametrize(("got", "expected"), DIFFERENT)
def test_different_output(got: str, expected: str) -> None:
    assert not same_output(got, expected)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("[1,2]", "[1,2]", True),
        ("[2,1]", "[1,2]", False),
        ("[1]", "1", False),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ('{"a":1}', '{"a":1,"b":2}', False),
        ("1", "true", False),
        ("true", "1", False),
        ("false", "0", False),
        ("null", "null", True),
        ('""', "null", False),
        ("3.0", "3", True),
        ("3.0000000001", "3", False),
        ("3", "3.0", True),
        ("0.3333333333", "0.33333333", True),
        ("0.3333", "0.33333333", False),
        ("1e-7", "2e-7", False),
        ("0.0", "1e-300", False),
        ("NaN", "NaN", True),
        ("NaN", "1.0", False),
        ("Infinity", "1.0", False),
        ("Infinity", "1", False),
        ("9007199254740993", "9007199254740992", False),
        ("9007199254740993", "9007199254740992.0", True),
        ('"a "', '"a"', False),
        ('"1"', "1", False),
        (str(10**400), "1.0", False),
        (str(10**400), str(10**400), True),
        ("1.0", str(10**400), False),
    ],
)
def test_values(got: str, expected: str, same: bool) -> None:
    assert same_value(json.loads(got), json.loads(expected)) is same


def test_values_nested_beyond_reason_are_different_not_a_crash() -> None:
    deep = json.loads("[" * 500 + "]" * 500)
    assert not same_value(deep, deep)
