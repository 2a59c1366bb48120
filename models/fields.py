"""Reads typed values out of a model's JSON files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corymb.models.errors import BrokenModel


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and the name to blame when a value in it is wrong. A null counts as absent."""

    values: Mapping[str, Any]
    where: str

    @staticmethod
    def read(path: Path) -> "Fields":
        """Reads a file that holds one JSON object. Raises BrokenModel."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BrokenModel(f"{path.parent} is not a model folder: it has no {path.name}.") from None
        except (OSError, ValueError) as error:
            raise BrokenModel(f"{path} cannot be read: {error}.") from None
        if not isinstance(values, dict):
            raise BrokenModel(f"{path} must hold one JSON object.")
        return Fields(values, path.name)

    def has(self, name: str) -> bool:
        """Whether a value is given."""
        return self.values.get(name) is not None

    def with_defaults(self, **defaults: Any) -> "Fields":
        """The object with these values where it has none."""
        missing = {name: value for name, value in defaults.items() if not self.has(name)}
        return Fields({**self.values, **missing}, self.where)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "a whole number above zero")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._wrong(name, value, "a number above zero")
        return float(value)

    def real(self, name: str, default: float | None = None) -> float:
        """Any number, in either spelling of those that are not finite."""
        return self._real(name, self._value(name, default))

    def reals(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """As many numbers as the default has."""
        values = self.items(name) if self.has(name) else list(default)
        if len(values) != len(default):
            raise self._wrong(name, values, f"a list of {len(default)} numbers")
        return tuple(self._real(name, value) for value in values)

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def items(self, name: str) -> list[Any]:
        """A list, which may be empty."""
        value = self._value(name, None)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def inner(self, name: str) -> "Fields":
        """A nested object."""
        value = self._value(name, None)
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(value, f"{name} of {self.where}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise BrokenModel(f"{self.where} lacks {name}.")
        return value

    def _real(self, name: str, value: Any) -> float:
        if isinstance(value, dict) and list(value) == ["__float__"]:
            value = value["__float__"]
            if value in ("Infinity", "-Infinity"):
                return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        return float(value)

    def _wrong(self, name: str, value: object, wanted: str) -> BrokenModel:
        return BrokenModel(f"{name} in {self.where} must be {wanted}, not {value!r}.")
