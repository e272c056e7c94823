from __future__ import annotations

import json

import pytest

from penstock.metering.errors import BadTariff
from penstock.metering.tariff_files import Row, parse_sheet

TOML = """
[tariffs.night]
zone = "Europe/Berlin"

[[tariffs.night.versions]]
valid_from = 2026-01-01
kind = "time_of_use"
bands = [{ hours = "22-6", price_per_kwh = 0.190 }]
otherwise = 1

[[assignments]]
meter = "7"
tariff = "night"
valid_from = 2026-01-01T12:00:00Z
"""


def test_toml_and_json_say_the_same_and_numbers_are_read_exactly() -> None:
    sheet = parse_sheet("a.toml", TOML)
    (version,) = sheet.tariffs["night"]["versions"]
    assert version == {
        "valid_from": "2026-01-01", "kind": "time_of_use", "otherwise": "1",
        "bands": [{"hours": "22-6", "price_per_kwh": "0.190"}],
    }  # fmt: skip
    assert sheet.assignments == [Row("7", "night", "2026-01-01T12:00:00+00:00")]
    rows = [row._asdict() for row in sheet.assignments]
    text = json.dumps({"tariffs": sheet.tariffs, "assignments": rows})
    assert parse_sheet("A.JSON", text.replace('"0.190"', "0.190")) == sheet


def test_a_csv_has_assignments_with_columns_in_any_order() -> None:
    text = '\ufefftariff, valid_from ,meter\nnight,2026-01-01,7\n\n"a,b",2026-01-01, x y \n'
    assert parse_sheet("m.csv", text).assignments == [
        Row("7", "night", "2026-01-01"), Row("x y", "a,b", "2026-01-01"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "", "expected a file .toml, .json or .csv, found 'a.yaml'"),
        ("a.toml", "x =", "a.toml: malformed TOML: "),
        ("a.json", "[", "a.json: malformed JSON: "),
        ("a.json", "[]", "a.json: expected tariffs and assignments, found []"),
        ("a.json", "{}", "a.json: the file has neither tariffs nor assignments"),
        ("a.json", '{"tariff": {}}', "expected tariffs and assignments, found 'tariff'"),
        ("a.json", '{"assignments": {}}', "expected a list of assignments, found {}"),
        ("a.json", '{"assignments": [{"meter": 7}]}', "assignment 1: expected a tariff, found"),
        ("a.toml", TOML.replace("time_of_use", "tou"),
         ("a.toml: tariff 'night': version 1: expected kind flat, time_of_use or seasonal, found "
         "'tou'")),
        ("a.toml", TOML.replace("otherwise = 1", ""), "no price for "),
        ("a.toml", TOML.replace("0.190", "nan"), "found 'NaN'"),
        ("a.toml", TOML.replace("Europe/Berlin", "Berlin"), "expected a time zone"),
        ("a.toml", TOML.replace("2026-01-01\n", "22:00:00\n"), "expected a day such as 2026-01-01"),
        ("m.csv", "", "m.csv: expected the columns meter,tariff,valid_from, found ''"),
        ("m.csv", "meter,tariff\n", "found 'meter,tariff'"),
        ("m.csv", "meter,tariff,valid_from\n", "the file has no assignments"),
        ("m.csv", "meter,tariff,valid_from\n1,a\n", "line 2: there are 3 columns and 2 values"),
        ("m.csv", "meter,tariff,valid_from\n1,,x\n", "line 2: expected a tariff, found ''"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_with_its_name_and_place(
    name: str, text: str, said: str
) -> None:
    with pytest.raises(BadTariff) as caught:
        parse_sheet(name, text)
    assert said in caught.value.message
