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


def read_sources(query: str) -> tuple[str, ...]:
    """The distinct relations that a query reads, sorted."""
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
        raise InvalidQuery(f"expected one SELECT, found {len(trees)} statements")
    tree = trees[0]
    if not isinstance(tree, exp.Query) or tree.find(exp.Into, exp.DML, exp.DDL):
        raise InvalidQuery(f"expected a SELECT, found {tree.key.upper()}")
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
        raise InvalidQuery(f"expected 'table', 'schema.table' or 'topics.name', found {text!r}")
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
    exp.Rand: "rand",
    exp.Randn: "randn",
    exp.Randstr: "randstr",
    exp.SessionUser: "session_user",
    exp.Shuffle: "shuffle",
    exp.TableSample: "tablesample",
    exp.Uniform: "uniform",
    exp.Uuid: "uuid",
}
_BY_NAME: Final = frozenset(
    {
        "aes_encrypt", "getdate", "input_file_block_length", "input_file_block_start",
        "input_file_name", "monotonically_increasing_id", "now", "random", "spark_partition_id",
        "user", "version",
    }
)  # fmt: skip
"""Functions that the parser knows only by name."""


_WORD: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE)
"""Text that Spark reads as a timestamp, optionally followed by a time zone."""

_READS_WORDS: Final = frozenset(
    {"to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_date", "try_to_timestamp"}
)


def volatile_functions(query: str) -> tuple[str, ...]:
    """The volatile functions of a query, sorted."""
    found = set()
    for node in parse_query(query).walk():
        name = _KNOWN.get(type(node))
        if name is None and isinstance(node, exp.Anonymous) and node.name.lower() in _BY_NAME:
            name = node.name.lower()
        if isinstance(node, exp.Literal):
            name = _moment(node)
        if name is not None:
            found.add(name)
    return tuple(sorted(found))


def _moment(text: exp.Literal) -> str | None:
    """The function behind a text read as a timestamp: `TIMESTAMP 'now'`."""
    word = _WORD.fullmatch(text.name) if text.is_string else None
    if word is None:
        return None
    around = text.parent
    is_read = (
        (isinstance(around, exp.Cast) and around.to.is_type(*exp.DataType.TEMPORAL_TYPES))
        or isinstance(around, exp.TsOrDsToDate)
        or (isinstance(around, exp.Anonymous) and around.name.lower() in _READS_WORDS)
    )
    if not is_read:
        return None
    return "now" if word[1].lower() == "now" else "current_date"
