"""The relations that a query reads, and the functions in it that read something else.

CTEs, aliases and table functions do not count as relations. A table that uses a volatile function
is refreshed on every schedule, because its contents may become stale while its sources stay the
same.

>>> read_sources("WITH recent AS (SELECT * FROM Orders) SELECT * FROM recent JOIN topics.Meters m")
('orders', 'topics.Meters')
>>> volatile_functions("SELECT id FROM orders WHERE day = current_date()")
('current_date',)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.protocol.errors import InvalidQuery
from penstock.tables.query.dialect import ExactSpark
from penstock.tables.query.names import TOPICS_SCHEMA, relation_name

_FILE_FORMATS: Final = frozenset({"parquet", "orc", "csv", "json", "text", "avro", "delta", "xml"})
_FILE_FUNCTIONS: Final = frozenset({"read_files", "identifier", "table"})
_CODE_FUNCTIONS: Final = frozenset({"java_method", "reflect", "try_reflect"})
"""They can call any static Java method, even `System.exit`."""


@lru_cache(maxsize=1_024)
def read_sources(query: str) -> tuple[str, ...]:
    """The distinct relations that a query reads, sorted; the last thousand queries are kept."""
    tree = parse_query(query)
    refuse_code(tree)
    return tuple(sorted(set(_relations(tree, frozenset()))))


def refuse_code(tree: exp.Expr) -> None:
    """Reject functions that run arbitrary code inside the engine, which all queries share."""
    for node in tree.walk():
        if isinstance(node, exp.QueryTransform):
            raise InvalidQuery("a query cannot run programs: TRANSFORM … USING is refused")
        if isinstance(node, exp.Anonymous) and node.name.lower() in _CODE_FUNCTIONS:
            raise InvalidQuery(f"a query cannot call Java: {node.name.lower()}(…) is refused")
        if isinstance(node, exp.Aliases) and any(
            called.name.lower() == "identifier" for called in node.this.find_all(exp.Anonymous)
        ):  # `identifier('reflect')(…)`, which the parser takes for aliases
            raise InvalidQuery("a function must be called by its name: identifier(…) is refused")


def parse_query(query: str) -> exp.Query:
    """Parse a query, which must be a single SELECT; otherwise `InvalidQuery`."""
    try:
        statements = [tree for tree in sqlglot.parse(query, read=ExactSpark) if tree is not None]
    except SqlglotError as error:
        raise InvalidQuery(f"the query cannot be parsed{_where(error)}") from None
    except RecursionError:
        raise InvalidQuery("the query is nested too deep") from None
    trees = [tree for tree in statements if not isinstance(tree, exp.Semicolon)]
    if len(trees) != 1:
        raise InvalidQuery(f"a query is one SELECT, not {len(trees)} statements")
    tree = trees[0]
    if not isinstance(tree, exp.Query) or tree.find(exp.Into, exp.DML, exp.DDL):
        raise InvalidQuery(f"a query is a SELECT, not {tree.key.upper()}")
    if isinstance(tree, exp.Select) and not tree.expressions:
        raise InvalidQuery("the SELECT names no column")
    return tree


def normal_query(query: str) -> str:
    """A canonical text for queries that differ only in layout, comments and keyword case."""
    return parse_query(query).sql(dialect="spark", comments=False)


def _relations(node: exp.Expr, known: frozenset[str]) -> Iterator[str]:
    """Walk a tree with the CTE names visible at each node."""
    clause = node.args.get("with_")
    if isinstance(clause, exp.With):
        recursive = bool(clause.args.get("recursive"))
        for cte in clause.expressions:
            # A CTE sees earlier ones, and itself only if recursive: `WITH a AS (SELECT * FROM a)`
            # reads the relation a.
            name = frozenset({cte.alias.lower()})
            yield from _relations(cte.this, known | name if recursive else known)
            known |= name
    if isinstance(node, exp.Table):
        yield from _relation(node, known)
    for child in node.iter_expressions():
        # A hint contains aliases, which only look like tables.
        if child is not clause and not isinstance(child, exp.Hint):
            yield from _relations(child, known)


def _relation(table: exp.Table, known: frozenset[str]) -> Iterator[str]:
    if not isinstance(table.this, (exp.Identifier, exp.Dot)):
        _refuse_hidden(table.this)
        return  # a table function; it reads its arguments
    parts = [part.name for part in table.parts]
    if len(parts) == 1 and parts[0].lower() in known:
        return
    if table.args.get("version") or table.args.get("when"):
        raise InvalidQuery(
            f"the query reads an old version of {'.'.join(parts)}: a stream table reads its "
            "sources as they are when it is refreshed"
        )
    yield _checked(parts)


def _checked(parts: list[str]) -> str:
    text = ".".join(parts)
    if parts[0].lower() == TOPICS_SCHEMA and len(parts) > 1:
        return relation_name(parts)
    if len(parts) == 2 and parts[0].lower() in _FILE_FORMATS and "/" in parts[1]:
        raise InvalidQuery(
            f"the query reads the files {text!r}: only lake tables and topics can be read"
        )
    if len(parts) > 2 or any("." in part for part in parts):
        raise InvalidQuery(f"{text!r} is not of the form 'table', 'schema.table' or 'topics.name'")
    return relation_name(parts)


def _refuse_hidden(function: exp.Expr) -> None:
    """Reject functions whose result depends on data that we cannot watch."""
    name = function.name if isinstance(function, exp.Anonymous) else function.key
    inner = [found.name for found in function.find_all(exp.Anonymous)]
    for found in (name, *inner):
        if found.lower() in _FILE_FUNCTIONS:
            raise InvalidQuery(
                f"the query calls {found}(…): only lake tables and topics can be read"
            )


def _where(error: SqlglotError) -> str:
    """The parser's error message, with the place."""
    found = getattr(error, "errors", None)
    if not found:
        return ": a quote or a comment is not closed"
    first = found[0]
    piece = first["highlight"] or ""
    column = max(1, first["col"] - len(piece) + 1)
    what = first["description"]
    if what.startswith("Required keyword"):  # the parser's internal class names
        what = "something is missing here"
    elif "Unexpected token" in what:
        what = "not expected here"
    return f" (line {first['line']}, column {column}: {piece}): {what}"


_KNOWN: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTime: "current_time",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentUser: "current_user",
    exp.Localtime: "localtime",
    exp.Localtimestamp: "localtimestamp",
    exp.SessionUser: "session_user",
    exp.TableSample: "tablesample",
}
_BY_NAME: Final[dict[str, str]] = {
    name: name
    for name in (
        "aes_encrypt", "getdate", "input_file_block_length", "input_file_block_start",
        "input_file_name", "monotonically_increasing_id", "now", "python_worker_logs", "rand",
        "randn", "randstr", "shuffle", "spark_partition_id", "try_aes_encrypt", "uniform", "user",
        "uuid", "version",
    )
} | {"random": "rand"}  # fmt: skip
"""Functions that the parser knows only by name."""


_BARE: Final = frozenset({"current_time", "localtime", "localtimestamp"})
"""Functions without parentheses that the parser takes for columns."""

_WORD: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE)
"""Text that Spark reads as a timestamp, optionally followed by a time zone."""

_READS_DATES: Final = frozenset(
    {
        "add_months", "convert_timezone", "date", "date_add", "date_diff", "date_format",
        "date_part", "date_sub", "date_trunc", "dateadd", "datediff", "datepart", "day", "dayname",
        "dayofmonth", "dayofweek", "dayofyear", "from_utc_timestamp", "hour", "last_day",
        "make_timestamp", "minute", "month", "monthname", "months_between", "next_day", "quarter",
        "second", "session_window", "time_bucket", "timestamp", "timestamp_ltz", "timestamp_ntz",
        "timestampadd", "timestampdiff", "to_date", "to_timestamp", "to_timestamp_ltz",
        "to_timestamp_ntz", "to_utc_timestamp", "trunc", "try_to_date", "try_to_timestamp",
        "unix_date", "unix_micros", "unix_millis", "unix_seconds", "weekday", "weekofyear",
        "window", "year",
    }
)  # fmt: skip
"""Functions of dates and timestamps, which read texts as such."""

_ONE_TYPE: Final = frozenset(
    {
        "array", "array_append", "array_contains", "array_insert", "array_position",
        "array_prepend", "array_remove", "array_repeat", "coalesce", "equal_null", "greatest",
        "ifnull", "least", "map", "nullif", "nvl", "nvl2",
    }
)  # fmt: skip
"""Functions whose arguments get one type."""

_MAKES_TEXTS: Final = frozenset(
    {
        "concat", "concat_ws", "date_format", "get_json_object", "initcap", "lcase", "left",
        "lower", "lpad", "ltrim", "regexp_extract", "regexp_replace", "replace", "right", "rpad",
        "rtrim", "string", "substring_index", "to_char", "translate", "ucase", "upper",
    }
)  # fmt: skip


def volatile_functions(query: str) -> tuple[str, ...]:
    """The volatile functions of a query, sorted."""
    found = (_volatile(node) for node in parse_query(query).walk())
    return tuple(sorted({name for name in found if name is not None}))


def _volatile(node: exp.Expr) -> str | None:
    """The volatile function that a node is, if it is one."""
    if isinstance(node, exp.Literal):
        return _moment(node)
    if isinstance(node, exp.Column):
        is_bare = not node.table and isinstance(node.this, exp.Identifier) and not node.this.quoted
        return node.name.lower() if is_bare and node.name.lower() in _BARE else None
    if not isinstance(node, exp.Anonymous):
        return _KNOWN.get(type(node))
    name = node.name.lower()
    if name in ("unix_timestamp", "to_unix_timestamp") and not node.expressions:
        return "current_timestamp"
    return _BY_NAME.get(name)


def _moment(text: exp.Literal) -> str | None:
    """The moment that a text is where Spark reads it as a date or a timestamp: `ts < 'now'`.

    Spark casts a text beside a date without being asked. What is beside it has a type that only
    Spark knows, so everything counts as a date that is not evidently a text.
    """
    word = _WORD.fullmatch(text.name) if text.is_string else None
    if word is None or not _may_be_read(text):
        return None
    return "now" if word[1].lower() == "now" else "current_date"


def _may_be_read(text: exp.Expr) -> bool:
    """Whether a text may be cast to a date or a timestamp where it stands."""
    around = text.parent
    if isinstance(around, exp.Paren | exp.Tuple):
        return _may_be_read(around)
    if isinstance(around, exp.Cast):
        return around.to.is_type(*exp.DataType.TEMPORAL_TYPES)
    if isinstance(around, exp.Anonymous):
        if around.name.lower() in _READS_DATES:
            return True
        named = around.name.lower() in _ONE_TYPE
        return named and not all(_is_text(each) for each in around.expressions)
    if isinstance(around, exp.If) and isinstance(around.parent, exp.Case):
        around = around.parent
    if isinstance(around, exp.Case | exp.If):
        return not all(_is_text(each) for each in _branches(around))
    if isinstance(around, exp.Extract):
        return True
    if isinstance(around, exp.Like | exp.ILike | exp.RegexpLike):
        return False
    if isinstance(around, exp.Predicate | exp.Add | exp.Sub):
        others = (each for each in around.iter_expressions() if each is not text)
        return not all(_is_text(each) for each in others)
    return False


def _branches(case: exp.Expr) -> list[exp.Expr]:
    """What a CASE or IF may be, and what a CASE compares."""
    ifs = case.args.get("ifs") or [case]
    found = [each.args.get("true") for each in ifs]
    found += [case.args.get("default"), case.args.get("false")]
    if isinstance(case, exp.Case) and case.this is not None:
        found += [case.this, *(each.this for each in ifs)]
    return [each for each in found if each is not None]


def _is_text(node: exp.Expr) -> bool:
    """Whether an expression is a text, or NULL, by how it is written."""
    if isinstance(node, exp.Paren):
        return _is_text(node.this)
    if isinstance(node, exp.Cast):
        return node.to.is_type(*exp.DataType.TEXT_TYPES)
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _MAKES_TEXTS
    is_literal = isinstance(node, exp.Literal) and node.is_string
    return is_literal or isinstance(node, exp.Null | exp.DPipe | exp.Concat | exp.Trim)
