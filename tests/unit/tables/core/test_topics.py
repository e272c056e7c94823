from __future__ import annotations

import pytest

from penstock.protocol.errors import InvalidSource
from penstock.tables.core.topics import TopicColumn, TopicSource, declare_topic


def test_a_declaration_comes_back_as_it_was():
    source = declare_topic("Meters:7", "id BIGINT, `we ird` STRING", key="ID", url="https://x:1/")
    assert source.columns == (TopicColumn("id", "BIGINT"), TopicColumn("we ird", "STRING"))
    assert (source.key, source.url) == (("id",), "https://x:1")
    assert source.schema == "`id` BIGINT, `we ird` STRING"
    assert TopicSource.from_json(source.to_json()) == source
    assert declare_topic("Meters:7", source.schema, key=source.key, url=source.url) == source


@pytest.mark.parametrize(
    "kind",
    ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10, 2)",
     "STRING", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<BIGINT>",
     "STRUCT<a: INT, b: ARRAY<STRING>>", "MAP<STRING, DOUBLE>"],
)  # fmt: skip
def test_a_column_may_have_any_type_that_json_can_fill(kind):
    source = declare_topic("t", f"x {kind}")
    again = declare_topic("t", source.schema)
    assert again == source


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("", "a topic has from 1 to 1000 columns, not 0"),
        ("id", "column 'id' has no type"),
        ("id BIGINT, ID INT", "'ID' is declared twice"),
        ("id BIGINT NOT NULL", "a column is a name and a type"),
        ("id BIGINT) ; DROP TABLE x; (", "not columns such as"),
        ("x JSON", "cannot have: JSON"),
        ("x MAP<INT, INT>", "cannot have: MAP<INT, INT>"),
        ("_seq STRING", "the record's own and has the type BIGINT, not STRING"),
        ("id BIGINT PRIMARY KEY", "a column is a name and a type"),
    ],
)
def test_columns_that_cannot_be_are_refused_with_what_was_found(schema, text):
    with pytest.raises(InvalidSource, match=text.replace("(", r"\(")):
        declare_topic("t", schema)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("nope", "no column 'nope' for the key; columns are id, x, _seq"),
        ("x", "'x' of type DOUBLE cannot be a key"),
        ("_seq", "'_seq' of type BIGINT cannot be a key"),
        ("id,id", "'id' is given twice"),
    ],
)
def test_a_key_that_cannot_be_is_refused(key, text):
    with pytest.raises(InvalidSource, match=text):
        declare_topic("t", "id BIGINT, x DOUBLE, _seq BIGINT", key=key)


@pytest.mark.parametrize("url", ["ftp://x", "nowhere", "http://user:secret@x"])
def test_an_address_that_is_none_is_refused_and_no_password_is_kept(url):
    with pytest.raises(InvalidSource, match="address of a topic server") as told:
        declare_topic("t", "id BIGINT", url=url)
    assert "secret" not in str(told.value)


def test_a_name_that_no_topic_can_have_is_refused():
    with pytest.raises(InvalidSource, match="cannot name a topic"):
        declare_topic("a b", "id BIGINT")
