"""T1, the file of a tuning problem that Kernel Tuner and others read: parameters with their values, conditions, and the
kernel (schema 1.0.0, https://github.com/odgaard/TuningSchema).

Values are Python expressions there. Nothing is run here: lists of constants, arithmetic on them and comprehensions over
`range` are computed by a walk through the syntax; of other expressions the values are not known. Conditions are kept as
texts.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chanas.compiler.space import Coordinate, Point, ScheduleSpace
from chanas.prescheduler.tuning.offline.exchange.reading import listed, mapping, string

Value = int | float | bool | str
"""A value of a parameter."""

TYPES = ("int", "uint", "float", "bool", "string")
LANGUAGES = ("OpenCL", "CUDA", "Vulkan", "Hypertuner")
OWN = "chanas"
"""The key under which our own files say what operator and device they are of; the schema allows others."""
MAX_LISTED = 20_000
"""Most legal points that a condition lists."""
_MAX_VALUES, _MAX_TEXT, _MAX_NUMBER = 100_000, 1 << 20, 1 << 60
_MAX_POWER, _MAX_DIGITS = 60, 12


@dataclass(frozen=True)
class Parameter:
    """A parameter and its values; None where the file has an expression that is not computed here."""

    name: str
    values: tuple[Value, ...] | None


@dataclass(frozen=True)
class Problem:
    """A tuning problem: the kernel, its parameters, conditions as texts; `own` is what our own files say besides."""

    kernel: str
    language: str
    device: str
    parameters: tuple[Parameter, ...]
    conditions: tuple[str, ...] = ()
    own: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def num_combinations(self) -> int | None:
        """Combinations of values, allowed or not; None where some values are not known."""
        known = [parameter.values for parameter in self.parameters]
        return math.prod(len(values) for values in known if values is not None) if None not in known else None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.parameters)


def read_problem(data: Any) -> Problem:
    """Check a T1 file's JSON.

    Raises:
        ValueError: something is missing, or not what the schema asks for.
    """
    whole_file = mapping(data, "a tuning problem")
    kernel = _object(whole_file, "KernelSpecification")
    for name in ("KernelName", "KernelFile"):
        string(kernel.get(name), f"KernelSpecification.{name}")
    for name in ("GlobalSize", "LocalSize"):
        string(_object(kernel, name).get("X"), f"{name}.X")
    space = _object(whole_file, "ConfigurationSpace")
    parameters = [_parameter(p) for p in listed(space.get("TuningParameters"), "TuningParameters")]
    if len({p.name for p in parameters}) < len(parameters):
        raise ValueError("expected parameters of different names, got one twice")
    conditions = listed(space.get("Conditions", []), "Conditions")
    device = mapping(kernel.get("Device", {}), "Device").get("Name", "")
    return Problem(
        kernel["KernelName"],
        _one_of(kernel.get("Language"), LANGUAGES, "KernelSpecification.Language"),
        string(device, "Device.Name"),
        tuple(parameters),
        tuple(_condition(c) for c in conditions),
        mapping(whole_file[OWN], OWN) if OWN in whole_file else None,
    )


def _object(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return mapping(data.get(name), name)


def _one_of(value: Any, known: Sequence[str], what: str) -> str:
    if string(value, what) not in known:
        raise ValueError(f"expected one of {', '.join(known)} for {what}, got {value[:40]}")
    return str(value)


def _parameter(data: Any) -> Parameter:
    found = mapping(data, "a parameter")
    name = string(found.get("Name"), "a parameter's Name")
    _one_of(found.get("Type"), TYPES, f"Type of {name[:40]}")
    return Parameter(name, values_of(string(found.get("Values"), f"Values of {name[:40]}")))


def _condition(data: Any) -> str:
    found = mapping(data, "a condition")
    for parameter in listed(found.get("Parameters"), "Parameters of a condition"):
        string(parameter, "a parameter of a condition")
    return string(found.get("Expression"), "Expression of a condition")


# ---- values ---------------------------------------------------------------------------------------------------------
_SIGNS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


class _UnknownError(Exception):
    """An expression that is not computed here."""


def values_of(text: str) -> tuple[Value, ...] | None:
    """The values that an expression lists; None: it does so in a way that is not computed here.

    Raises:
        ValueError: it is no expression, or too long.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"expected Values of at most {_MAX_TEXT >> 20} MiB, got {len(text)} characters")
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
        values = tuple(_constants(parsed))
    except (_UnknownError, RecursionError, MemoryError, ArithmeticError):
        return None
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"expected a list of Values, got {text[:40]}") from error
    if not values:
        raise ValueError(f"expected a list of Values, got {text[:40]}")
    return tuple(dict.fromkeys(values))


def _constants(node: ast.expr) -> Iterable[Value]:
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_number(e, {}) for e in _few(elements)]
        case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]):
            return _constants(inner)
        case ast.Call(func=ast.Name(id="range")):
            return _range(node)
        case ast.ListComp(elt=value, generators=[ast.comprehension(target=ast.Name(id=name), iter=values, ifs=[])]):
            return [_number(value, {name: v}) for v in _constants(values)]
    raise _UnknownError


def _few(elements: list[ast.expr]) -> list[ast.expr]:
    if len(elements) > _MAX_VALUES:
        raise _UnknownError
    return elements


def _range(node: ast.Call) -> range:
    ends = [_number(a, {}) for a in node.args]
    if node.keywords or not 1 <= len(ends) <= 3 or not all(type(e) is int for e in ends) or 0 in ends[2:]:
        raise _UnknownError
    numbers = range(*ends)  # type: ignore[arg-type]
    if len(numbers) > _MAX_VALUES:
        raise _UnknownError
    return numbers


def _number(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            found: Any = value
        case ast.Name(id=name) if name in names:
            found = names[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            found = -_operand(inner, names)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            a, b = _operand(left, names), _operand(right, names)
            if isinstance(sign, ast.Pow) and not 0 <= b <= _MAX_POWER:
                raise _UnknownError
            found = _SIGNS[type(sign)](a, b)
        case _:
            raise _UnknownError
    if isinstance(found, int | float) and not abs(found) <= _MAX_NUMBER:
        raise _UnknownError
    return found  # type: ignore[no-any-return]


def _operand(node: ast.expr, names: Mapping[str, Value]) -> int | float:
    value = _number(node, names)
    if isinstance(value, str):
        raise _UnknownError
    return value


# ---- our own spaces -------------------------------------------------------------------------------------------------
def spelled(coordinate: Coordinate, group: tuple[int, ...]) -> Value:
    """A knob's candidate as a value: a number, or the factors of a loop from outer to inner, `2x7`."""
    return group[0] if coordinate.width == len(group) == 1 else "x".join(map(str, group))


def point_of(space: ScheduleSpace[Any], configuration: Mapping[str, Value]) -> Point | None:
    """The point with these values; None: a value is no candidate, or they are no point together."""
    point: list[int] = []
    for coordinate in space.coordinates:
        value = configuration.get(coordinate.name)
        factors = value.split("x") if isinstance(value, str) else [str(value)]
        if not all(factor.isdecimal() and len(factor) < _MAX_DIGITS for factor in factors):
            return None
        group = tuple(map(int, factors))
        if spelled(coordinate, group) != value or type(value) is bool:
            return None
        point += group
    return tuple(point) if space.contains(tuple(point)) else None


def configuration_of(space: ScheduleSpace[Any], point: Point) -> dict[str, Value]:
    """A point as values by the names of knobs.

    Raises:
        ScheduleError: it is not one of the space.
    """
    groups = space.groups(point)
    return {c.name: spelled(c, groups[c.name]) for c in space.coordinates}


def problem_of(space: ScheduleSpace[Any], is_gpu: bool, device: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule space as T1: a parameter for each knob, and the legal points as a condition where not all
    combinations are legal and they can be listed. The schema wants a language: a processor's is none of them, and
    `OpenCL` stands for it."""
    parameters = []
    for coordinate in space.coordinates:
        values = [spelled(coordinate, group) for group in coordinate.options]
        kind = "int" if coordinate.width == 1 else "string"
        parameters.append({"Name": coordinate.name, "Type": kind, "Values": repr(values), "Default": values[0]})
    configuration_space: dict[str, Any] = {"TuningParameters": parameters, "Conditions": []}
    if lists_points(space):
        names = [coordinate.name for coordinate in space.coordinates]
        points = sorted(tuple(configuration_of(space, p).values()) for p in space.points)
        expression = f"({', '.join(names)},) in {points!r}"
        configuration_space["Conditions"] = [{"Parameters": names, "Expression": expression}]
    return {
        "General": {"FormatVersion": 1, "TimeUnit": "Milliseconds", "OutputFormat": "JSON"},
        "ConfigurationSpace": configuration_space,
        "KernelSpecification": {
            "Language": "CUDA" if is_gpu else "OpenCL",
            "Device": {"Name": device},
            "KernelName": space.workload.key,
            "KernelFile": "",
            "GlobalSize": {"X": "1"},
            "LocalSize": {"X": "1"},
            "Arguments": [],
        },
        OWN: dict(own),
    }


def lists_points(space: ScheduleSpace[Any]) -> bool:
    """True where a condition says which combinations are legal."""
    return space.is_listed and space.num_points < space.num_combinations and space.num_points <= MAX_LISTED
