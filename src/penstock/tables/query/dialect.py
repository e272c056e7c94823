"""Spark's SQL, read so that what is written again means the same.

sqlglot turns functions that it knows into its own terms, and writes some of them back as another
function: `log10(x)` as `LOG(10, x)`, which is 2.9999999999999996 for 1000; `to_char(x, format)` as
a cast; the format `'y'` as `'yyyy'`. So only functions whose type the rules ask for are read by
type. All others are calls by name, which are written as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

_BY_TYPE: Final = frozenset(
    {
        "APPROX_COUNT_DISTINCT", "APPROX_TOP_K", "AVG", "BIT_AND", "BIT_OR", "BIT_XOR", "BOOL_AND",
        "BOOL_OR", "CORR", "COUNT", "COUNT_IF", "COVAR_POP", "COVAR_SAMP", "CUME_DIST", "CURDATE",
        "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "DENSE_RANK",
        "EXPLODE", "EXPLODE_OUTER", "GROUPING", "GROUPING_ID", "INLINE", "KURTOSIS", "LAG", "LEAD",
        "LOCALTIME", "LOCALTIMESTAMP", "MEDIAN", "MODE", "NTH_VALUE", "NTILE",
        "PERCENT_RANK", "POSEXPLODE", "POSEXPLODE_OUTER", "RANK", "REGR_AVGX", "REGR_AVGY",
        "REGR_COUNT", "REGR_INTERCEPT", "REGR_R2", "REGR_SLOPE", "REGR_SXX", "REGR_SXY", "REGR_SYY",
        "ROW_NUMBER", "SESSION_USER", "SKEWNESS", "STDDEV", "STDDEV_POP", "STDDEV_SAMP", "STRUCT",
        "SUM", "VARIANCE", "VAR_POP", "VAR_SAMP",
    }
)  # fmt: skip
"""Aggregates, window functions, generators, and what the time of day decides."""

_BY_GRAMMAR: Final = frozenset(
    {
        "AND", "BROADCAST", "BROADCASTJOIN", "CAST", "CEIL", "EXTRACT", "FLOOR", "MAPJOIN", "MERGE",
        "MERGEJOIN", "OR", "OVERLAY", "POSITION", "SHUFFLEMERGE", "SHUFFLE_HASH",
        "SHUFFLE_REPLICATE_NL", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST",
    }
)  # fmt: skip
"""Functions whose arguments have words between them, and hints."""

_OF_ONE: Final[dict[str, type[exp.Expr]]] = {"MAX": exp.Max, "MIN": exp.Min}
"""Functions that are others to the parser if they have more arguments."""

_WITH_NULLS: Final[dict[str, type[exp.Expr]]] = {
    "ANY_VALUE": exp.AnyValue,
    "FIRST": exp.First,
    "FIRST_VALUE": exp.FirstValue,
    "LAST": exp.Last,
    "LAST_VALUE": exp.LastValue,
}
"""Functions whose second argument says whether they pass over NULL."""

_WITH_UNIT: Final = (
    "DATE_ADD", "DATE_DIFF", "DATEADD", "DATEDIFF", "TIMESTAMPADD", "TIMESTAMPDIFF",
)  # fmt: skip
"""Functions of three arguments whose first one is a keyword: `dateadd(HOUR, 1, at)`."""


def _unit_first(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    def build(args: list[exp.Expr]) -> exp.Expr:
        if len(args) == 3 and isinstance(args[0], exp.Column):
            args = [exp.var(args[0].name), *args[1:]]
        return exp.Anonymous(this=name, expressions=args)

    return build


def _of_one(name: str, kind: type[exp.Expr]) -> Callable[[list[exp.Expr]], exp.Expr]:
    def build(args: list[exp.Expr]) -> exp.Expr:
        return kind(this=args[0]) if len(args) == 1 else exp.Anonymous(this=name, expressions=args)

    return build


def _nulls_second(name: str, kind: type[exp.Expr]) -> Callable[[list[exp.Expr]], exp.Expr]:
    def build(args: list[exp.Expr]) -> exp.Expr:
        match args:
            case [value]:
                return kind(this=value)
            case [value, exp.Boolean(this=passes_over)]:
                args.pop()  # the parser counts what is left
                return exp.IgnoreNulls(this=kind(this=value)) if passes_over else kind(this=value)
            case _:
                return exp.Anonymous(this=name, expressions=args)

    return build


class ExactSpark(Spark):
    """Spark's dialect without what is lost on the way back."""

    class Tokenizer(Spark.Tokenizer):
        # Since Spark 4, `'O''Brien'` is one text with a quote in it.
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - as sqlglot declares it

    class Parser(SparkParser):
        COLON_IS_VARIANT_EXTRACT = True
        FUNCTIONS = {  # noqa: RUF012
            **{name: build for name, build in SparkParser.FUNCTIONS.items() if name in _BY_TYPE},
            **{name: _of_one(name, kind) for name, kind in _OF_ONE.items()},
            **{name: _nulls_second(name, kind) for name, kind in _WITH_NULLS.items()},
            **{name: _unit_first(name) for name in _WITH_UNIT},
        }
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parse
            for name, parse in SparkParser.FUNCTION_PARSERS.items()
            if name in _BY_GRAMMAR
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {
            name: parse
            for name, parse in SparkParser.NO_PAREN_FUNCTION_PARSERS.items()
            if name != "ANY"  # an aggregate, or before a subquery
        }

        def parse(self, raw_tokens: list[Token], sql: str = "") -> list[exp.Expr | None]:
            """A WINDOW clause begins with `w AS (`; otherwise, `window` is a name as any other."""
            tokens = list(raw_tokens)
            for place, token in enumerate(raw_tokens):
                if token.token_type is not TokenType.WINDOW:
                    continue
                behind = [each.token_type for each in raw_tokens[place + 2 : place + 4]]
                if behind != [TokenType.ALIAS, TokenType.L_PAREN]:
                    tokens[place] = Token(
                        TokenType.VAR, token.text, token.line, token.col, token.start, token.end,
                        token.comments,
                    )  # fmt: skip
            return super().parse(tokens, sql)
