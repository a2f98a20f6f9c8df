"""Random, correctly typed SQL expressions from the signatures that filters allow."""

import random

from search.filters.functions import FUNCTIONS, Signature

COLUMNS = {
    "text": ["Lang", "title", "id", "meta.Kind"],
    "number": ["year", "score", "price", "meta.n"],
    "truth": ["ok"],
    "date": ["day"],
    "moment": ["moment"],
    "list": ["tags"],
}
LITERALS = {
    "text": ["'en'", "''", "'a_b'", "'naïve'", "'1'"],
    "number": ["0", "1", "2", "-3", "2.5", "7"],
    "truth": ["TRUE", "FALSE"],
    "date": ["DATE '2020-02-29'", "DATE '1999-12-31'"],
    "moment": ["TIMESTAMP '2020-02-29 01:02:03'"],
    "time": ["TIME '01:02:03'"],
    "interval": ["INTERVAL 3 DAY", "INTERVAL '2' MONTH"],
    "list": ["['en', 'x']", "['b', NULL, 'a']"],
    "pattern": ["'%e_'", "'e%'", "'a!_b'"],
    "regex": ["'e.*'", "'(a|b)+'", "'^[A-Z]{1,3}$'"],
    "options": ["'i'", "'!'"],
    "part": ["'year'", "'day'", "'hour'", "'month'"],
}


class Expressions:
    """Random expressions of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._forms = [(name, form) for name, forms in FUNCTIONS.items() for form in forms]

    def condition(self) -> str:
        """Return a random condition."""
        choice = self._random.random()
        if choice < 0.2:
            return f"({self.condition()} {self._random.choice(['AND', 'OR'])} NOT {self.condition()})"
        if choice < 0.4:
            return self.of("truth", 2)
        kind = self._random.choice(["text", "number", "date", "moment", "list"])
        if choice < 0.6:
            return f"{self.of(kind, 2)} IS NOT NULL"
        return f"{self.of(kind, 2)} {self._random.choice(['=', '<', '<>', 'IS DISTINCT FROM'])} {self.of(kind, 1)}"

    def of(self, role: str, depth: int) -> str:
        """Return a random argument for a role."""
        kind = self._random.choice(role.split("/"))
        if depth == 0 or kind not in {"text", "number", "truth", "date", "moment", "list"}:
            leaves = LITERALS.get(kind, []) + COLUMNS.get(kind, [])
            return self._random.choice(leaves)
        forms = [(name, form) for name, form in self._forms if form.gives in (kind, "same")]
        if self._random.random() < 0.2:
            return (
                f"CASE WHEN {self.of('truth', depth - 1)} THEN {self.of(kind, 0)} ELSE {self.of(kind, depth - 1)} END"
            )
        name, form = self._random.choice(forms)
        return self.call(name, form, kind, depth - 1)

    def call(self, name: str, form: Signature, kind: str = "text", depth: int = 0) -> str:
        """Return a call by one of a function's signatures; `kind` is that of `same` arguments."""
        count = self._random.randint(form.needs, len(form.takes)) + (form.repeated and self._random.randint(0, 2))
        roles = [{"same": kind, "item": "text", "lists": "list"}.get(role, role) for role in form.roles(count) or ()]
        given = [self.of(role, depth) for role in roles]
        if name[0].isalpha():
            return f'"{name}"({", ".join(given)})' if name != "coalesce" else f"coalesce({', '.join(given)})"
        return f"({name} {given[0]})" if len(given) == 1 else f"({given[0]} {name} {given[1]})"
