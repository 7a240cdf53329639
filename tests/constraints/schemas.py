"""Random JSON schemas of what constraints honour."""

import random
from typing import Any

PATTERNS = ("^[a-z]{1,4}$", "x[0-9]+", "^(ab|cd)*$", "^\\d{3}-\\w+$", "[^\\s]{2}", "^é?[A-F]$")
FORMATS = ("date-time", "date", "time", "email", "ipv4", "uuid", "hostname", "uri", "duration")
NAMES = ("a", "b c", "naïve", 'quo"te', "x1", "long_name_of_a_property", "", "ünd/~0")


class Schemas:
    """Draws schemas from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self) -> dict[str, Any]:
        """Return a schema, some with definitions that refer to each other."""
        if not self._chance(0.25):
            return self._any(3)
        definitions = {
            "leaf": self._any(1),
            "node": {
                "type": "object",
                "properties": {
                    "value": {"$ref": "#/$defs/leaf"},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["value"],
                "additionalProperties": False,
            },
        }
        schema = self._object(1)
        schema["properties"]["ref"] = {"$ref": self._one(("#/$defs/node", "#/$defs/leaf"))}
        return {**schema, "$defs": definitions}

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _one(self, options: Any) -> Any:
        return self._random.choice(list(options))

    def _any(self, depth: int) -> dict[str, Any]:
        kinds = [self._string, self._number, self._enum, self._simple]
        if depth > 0:
            inner = [self._object, self._object, self._array, self._union, self._joint]
            kinds += [lambda make=make: make(depth - 1) for make in inner]
        found: dict[str, Any] = self._one(kinds)()
        if self._chance(0.2):
            found = {"title": "T", "description": "of it", **found}
        return found

    def _simple(self) -> dict[str, Any]:
        return self._one(
            (
                {"type": "boolean"},
                {"type": "null"},
                {"type": ["string", "null"]},
                {"type": "integer"},
            )
        )

    def _string(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "string"}
        kind = self._random.randrange(4)
        if kind == 0:
            found["pattern"] = self._one(PATTERNS)
        elif kind == 1:
            found["format"] = self._one(FORMATS)
        elif kind == 2:
            found["minLength"] = self._random.randrange(3)
            found["maxLength"] = found["minLength"] + self._random.randrange(8)
        return found

    def _number(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": self._one(("integer", "number"))}
        low = self._random.randrange(-200, 100)
        if self._chance(0.5):
            found[self._one(("minimum", "exclusiveMinimum"))] = low
        if self._chance(0.5):
            found[self._one(("maximum", "exclusiveMaximum"))] = low + self._random.randrange(5, 300)
        if found["type"] == "integer" and self._chance(0.3):
            found["multipleOf"] = self._one((2, 3, 5))
        return found

    def _enum(self) -> dict[str, Any]:
        values = [1, "one", None, True, [1, 2], {"k": "v"}, -3.5, "é\n", "</s>", ""]
        if self._chance(0.4):
            return {"const": self._one(values)}
        return {"enum": self._random.sample(values, self._random.randrange(1, 5))}

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randrange(0, 4))
        found: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
        }
        if self._chance(0.7):
            found["required"] = [name for name in names if self._chance(0.6)]
        if self._chance(0.7):
            found["additionalProperties"] = self._one((False, False, {"type": "integer"}))
        return found

    def _array(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "array", "items": self._any(depth)}
        if self._chance(0.3):
            found["prefixItems"] = [self._any(0) for _ in range(self._random.randrange(1, 3))]
        if self._chance(0.5):
            found["minItems"] = self._random.randrange(3)
        if self._chance(0.6):
            found["maxItems"] = found.get("minItems", 0) + self._random.randrange(3)
        return found

    def _union(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._any(depth) for _ in range(self._random.randrange(1, 4))]}

    def _joint(self, depth: int) -> dict[str, Any]:
        return {"allOf": [self._object(depth), {"type": "object", "required": ["a"]}]}
