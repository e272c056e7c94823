"""Random queries over small tables: every operator that the compiler has a rule for.

Values are few and often NULL, so that keys meet, groups empty and marks flip.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

TABLES = {
    "r": {"a": "INT", "b": "INT", "c": "INT"},
    "s": {"a": "INT", "d": "INT"},
    "t": {"b": "INT", "d": "INT", "e": "INT"},
    "v": {"a": "INT", "e": "INT"},
}
COMPARISONS = ("=", "=", "=", "<>", "<", ">=", "<=>")
AGGREGATES = (
    "count(*)", "count({x})", "sum({x})", "min({x})", "max({x})", "avg({x})",
    "count(DISTINCT {x})", "sum({x}) FILTER (WHERE {y} > 2)", "sum({x} + {y})",
    "count(*) FILTER (WHERE {x} = {y})", "sum(DISTINCT {x})",
)  # fmt: skip
WINDOWS = (
    "row_number() OVER (PARTITION BY {x} ORDER BY {y})",
    "rank() OVER (PARTITION BY {x} ORDER BY {y} DESC)",
    "sum({y}) OVER (PARTITION BY {x})",
    "count(*) OVER (PARTITION BY {x}, {y})",
    "lag({y}) OVER (PARTITION BY {x} ORDER BY {y}, {z})",
    "sum({z}) OVER (PARTITION BY {x} ORDER BY {y} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "max({z}) OVER (PARTITION BY {x} ORDER BY {y})",
)


@dataclass
class Maker:
    """Makes one query; `relations` is how many it may still read."""

    random: Random
    relations: int = 6
    ctes: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    names: int = 0

    def query(self) -> str:
        """A whole query."""
        if self._chance(0.25):
            text, columns = self._select(depth=1)
            self.ctes["w"] = (text, columns)
        text, _ = self._query(depth=0)
        if self.ctes:
            inner, _ = self.ctes["w"]
            return f"WITH w AS ({inner}) {text}"
        return text

    def _query(self, depth: int) -> tuple[str, list[str]]:
        if self.relations > 1 and self._chance(0.2):
            left, columns = self._select(depth + 1, width=2)
            right, _ = self._select(depth + 1, width=2)
            kinds = ("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
            return f"{left} {self._pick(kinds)} {right}", columns
        return self._select(depth)

    def _select(self, depth: int, width: int = 0) -> tuple[str, list[str]]:
        clause, columns = self._from(depth)
        where = self._where(columns, depth)
        shape = self.random.randrange(10)
        wanted = width or self.random.randint(1, 3)
        if shape < 3:
            return self._grouped(clause, where, columns, wanted)
        items = [self._value(columns, depth) for _ in range(wanted)]
        if shape == 3 and depth == 0:
            items[-1] = self._formatted(self._pick(WINDOWS), columns)
        names = [self._name() for _ in items]
        shown = ", ".join(f"{item} AS {name}" for item, name in zip(items, names, strict=True))
        distinct = "DISTINCT " if shape == 4 else ""
        tail = ""
        if shape == 5 and not width:
            offset = f" OFFSET {self.random.randint(1, 2)}" if self._chance(0.3) else ""
            order = f"{self._pick(names)}{self._pick(['', ' DESC'])}"
            tail = f" ORDER BY {order} LIMIT {self.random.randint(1, 4)}{offset}"
        return f"SELECT {distinct}{shown} FROM {clause}{where}{tail}", names

    def _grouped(
        self, clause: str, where: str, columns: list[str], wanted: int
    ) -> tuple[str, list[str]]:
        keys = self.random.sample(columns, min(len(columns), self.random.randint(0, 2)))
        keys = keys[: max(0, wanted - 1)]
        calls = [
            self._formatted(self._pick(AGGREGATES), columns) for _ in range(wanted - len(keys))
        ]
        names = [self._name() for _ in range(wanted)]
        items = [*keys, *calls]
        shown = ", ".join(f"{item} AS {name}" for item, name in zip(items, names, strict=True))
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = ""
        if keys and self._chance(0.3):
            having = f" HAVING {self._formatted(self._pick(AGGREGATES), columns)} > 1"
        return f"SELECT {shown} FROM {clause}{where}{group}{having}", names

    def _from(self, depth: int) -> tuple[str, list[str]]:
        text, columns = self._item(depth)
        while self.relations > 0 and self._chance(0.45):
            other, more = self._item(depth)
            kind = self._pick(
                ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN",
                 "LEFT ANTI JOIN", "CROSS JOIN")
            )  # fmt: skip
            if kind == "CROSS JOIN":
                if " CROSS " in text or not self._chance(0.3):
                    kind = "JOIN"
                else:
                    text = f"{text} CROSS JOIN {other}"
                    columns += more
                    continue
            if " CROSS " in text and kind in ("RIGHT JOIN", "FULL JOIN"):
                kind = "LEFT JOIN"
            equal = "=" if self._chance(0.85) else "<=>"
            on = f"{self._pick(columns)} {equal} {self._pick(more)}"
            if self._chance(0.3) and kind != "FULL JOIN":
                on += f" AND {self._pick(columns)} {self._pick(('<', '<>'))} {self._pick(more)}"
            text = f"{text} {kind} {other} ON {on}"
            if "SEMI" not in kind and "ANTI" not in kind:
                columns = columns + more
        return text, columns

    def _item(self, depth: int) -> tuple[str, list[str]]:
        """One relation: a table, the CTE, or a query in parentheses."""
        alias = self._name("x")
        if "w" in self.ctes and self._chance(0.4):
            self.relations -= 1
            return f"w AS {alias}", [f"{alias}.{name}" for name in self.ctes["w"][1]]
        if depth < 2 and self.relations > 1 and self._chance(0.2):
            text, names = self._query(depth + 1)
            return f"({text}) AS {alias}", [f"{alias}.{name}" for name in names]
        self.relations -= 1
        table = self._pick(tuple(TABLES))
        return f"{table} AS {alias}", [f"{alias}.{name}" for name in TABLES[table]]

    def _where(self, columns: list[str], depth: int) -> str:
        count = self._pick((0, 0, 1, 1, 2))
        return self._all(" WHERE ", [self._condition(columns, depth) for _ in range(count)])

    def _all(self, word: str, conditions: list[str]) -> str:
        return word + " AND ".join(f"({c})" for c in conditions) if conditions else ""

    def _condition(self, columns: list[str], depth: int) -> str:
        kind = self.random.randrange(9)
        if kind >= 4 and self.relations > 0 and depth < 2:
            if kind == 8:
                inner = self._condition(columns, depth)
                return f"{inner} OR {self._simple(columns)}"
            return self._with_query(columns, depth, kind)
        return self._simple(columns)

    def _simple(self, columns: list[str]) -> str:
        left = self._pick(columns)
        kind = self.random.randrange(4)
        if kind == 0:
            return f"{left} IS {self._pick(('', 'NOT '))}NULL"
        if kind == 1:
            return f"{left} IN ({self.random.randint(1, 3)}, {self.random.randint(2, 5)})"
        right = self._pick(columns) if kind == 2 else str(self.random.randint(1, 4))
        return f"{left} {self._pick(COMPARISONS)} {right}"

    def _with_query(self, columns: list[str], depth: int, kind: int) -> str:
        negated = self._pick(("", "NOT "))
        if kind in (4, 5):
            clause, inner = self._from(depth + 1)
            ties = []
            if self._chance(0.7):
                ties.append(f"{self._pick(columns)} = {self._pick(inner)}")
            if self._chance(0.3):
                ties.append(f"{self._pick(columns)} <> {self._pick(inner)}")
            if self._chance(0.3):
                ties.append(self._condition(inner, depth + 1))
            if kind == 4:
                return f"{negated}EXISTS (SELECT 1 FROM {clause}{self._all(' WHERE ', ties)})"
            value = self._pick(inner)
            text = f"SELECT {value} FROM {clause}{self._all(' WHERE ', ties)}"
            return f"{self._pick(columns)} {negated}IN ({text})"
        return f"{self._pick(columns)} {self._pick(COMPARISONS[:6])} {self._scalar(columns, depth)}"

    def _scalar(self, columns: list[str], depth: int) -> str:
        clause, inner = self._from(depth + 1)
        ties = []
        if self._chance(0.7):
            sign = "=" if self._chance(0.8) else "<="
            ties.append(f"{self._pick(inner)} {sign} {self._pick(columns)}")
        if self._chance(0.3):
            ties.append(self._simple(inner))
        call = self._pick(("count(*)", "max({x})", "sum({x})", "count({x}) + 1", "min({x})"))
        return f"(SELECT {self._formatted(call, inner)} FROM {clause}{self._all(' WHERE ', ties)})"

    def _value(self, columns: list[str], depth: int) -> str:
        kind = self.random.randrange(8)
        if kind == 0 and self.relations > 0 and depth < 2:
            return self._scalar(columns, depth)
        if kind == 1 and self.relations > 0 and depth < 2:
            # Spark's IN is false where DuckDB's is unknown.
            return f"coalesce({self._with_query(columns, depth, self._pick((4, 5)))}, FALSE)"
        if kind == 2:
            return f"coalesce({self._pick(columns)}, {self._pick(columns)} + 1)"
        if kind == 3:
            return f"CASE WHEN {self._simple(columns)} THEN {self._pick(columns)} END"
        return self._pick(columns)

    def _formatted(self, text: str, columns: list[str]) -> str:
        x, y, z = (self._pick(columns) for _ in range(3))
        return text.format(x=x, y=y, z=z)

    def _name(self, prefix: str = "c") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _pick(self, choices):  # type: ignore[no-untyped-def]
        return choices[self.random.randrange(len(choices))]

    def _chance(self, likely: float) -> bool:
        return self.random.random() < likely


def row(random: Random, table: str) -> tuple[int | None, ...]:
    """One row, of few values."""
    values = (None, 1, 1, 2, 2, 3, 4)
    return tuple(values[random.randrange(len(values))] for _ in TABLES[table])
