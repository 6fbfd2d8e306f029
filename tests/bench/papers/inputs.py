"""Published figures as they stand in published/: read with the file, line and field of whatever is wrong."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Record = TypeVar("Record")

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE / "published"
ROWS_MAX = 10_000


class InputError(Exception):
    """A published figure that cannot be used; the text names the file, the line and the field."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table."""

    path: Path
    line: int
    fields: dict[str, str]

    def wrong(self, field: str, what: str) -> InputError:
        return InputError(f"{self.path}: line {self.line}: {field}: {what}")

    def text(self, field: str) -> str:
        if not self.fields[field]:
            raise self.wrong(field, "is empty")
        return self.fields[field]

    def _number(self, field: str, read: Callable[[str], float], kind: str) -> float:
        try:
            value = read(self.text(field))
        except ValueError:
            raise self.wrong(field, f'"{self.fields[field]}" is not {kind}') from None
        if not math.isfinite(value) or value <= 0:
            raise self.wrong(field, f'"{self.fields[field]}" is not above 0')
        return value

    def number(self, field: str) -> float:
        return self._number(field, float, "a number")

    def count(self, field: str) -> int:
        return int(self._number(field, int, "a whole number"))


def rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """The lines of a CSV file whose header is `columns`."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        if tuple(next(reader, ())) != columns:
            raise InputError(f"{path}: line 1: expected the header {','.join(columns)}")
        for values in reader:
            if len(values) != len(columns):
                raise InputError(
                    f"{path}: line {reader.line_num}: {len(values)} fields, expected {len(columns)}"
                )
            if reader.line_num > ROWS_MAX:
                raise InputError(f"{path}: more than {ROWS_MAX} lines")
            yield Row(path, reader.line_num, dict(zip(columns, values, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from error


def records(path: Path, kind: type[Record]) -> list[Record]:
    """The lines of a CSV file that has a column for each field of `kind`, of that field's type."""
    reads = {"int": Row.count, "float": Row.number, "str": Row.text}
    fields = dataclasses.fields(kind)  # whose types are text: see the import from __future__
    return [
        kind(**{field.name: reads[field.type](row, field.name) for field in fields})
        for row in rows(path, tuple(field.name for field in fields))
    ]


@dataclasses.dataclass(frozen=True)
class Line:
    """What an all-reduce of m units costs: startup_s + s_per_unit * m."""

    ranks: int
    startup_s: float
    s_per_unit: float


def us_byte_lines(path: Path = PUBLISHED / "us_byte_lines.csv") -> list[Line]:
    return records(path, Line)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A speed-up that a paper reports, as the largest of several."""

    claim: str
    over: str
    figure: float


def us_byte_claims(path: Path = PUBLISHED / "us_byte_claims.csv") -> list[Claim]:
    return records(path, Claim)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What the code of US-Byte's authors answers. Blocks are (tensor, units), in the order of sending."""

    model: str
    ranks: int
    unit_elements: int
    iteration_s: float
    phase1_blocks: int
    blocks: tuple[tuple[int, int], ...]

    @property
    def title(self) -> str:
        return f"{self.model}, {self.ranks} ranks, units of {self.unit_elements}"


def us_byte_schedules(path: Path = PUBLISHED / "us_byte_schedules.csv") -> list[Schedule]:
    columns = ("model", "ranks", "unit_elements", "iteration_s", "phase1_blocks", "blocks")
    found = []
    for row in rows(path, columns):
        blocks = []
        for block in row.text("blocks").split(" "):
            tensor, _, units = block.partition(":")
            if not (tensor.isdecimal() and units.isdecimal()):
                raise row.wrong("blocks", f'"{block}" is not TENSOR:UNITS')
            blocks.append((int(tensor), int(units)))
        first = row.count("phase1_blocks")
        if first > len(blocks):
            raise row.wrong("phase1_blocks", f"{first} of {len(blocks)} blocks")
        found.append(
            Schedule(
                row.text("model"), row.count("ranks"), row.count("unit_elements"),
                row.number("iteration_s"), first, tuple(blocks),
            )
        )  # fmt: skip
    return found


@dataclasses.dataclass(frozen=True)
class Measured:
    """A throughput of the quantitative survey, of several GPUs."""

    model: str
    batch: int
    network: str
    method: str
    gpus: int
    samples_per_s: float

    @property
    def iteration_s(self) -> float:
        return self.gpus * self.batch / self.samples_per_s


@dataclasses.dataclass(frozen=True)
class Survey:
    single_s: dict[str, float]  # iteration of one GPU, by model
    measured: dict[tuple[str, str, int, str], Measured]  # by network, model, GPUs and method

    def names(self, field: str) -> list:
        """What stands in a field, in the order of the file."""
        return list(dict.fromkeys(getattr(row, field) for row in self.measured.values()))


def survey(methods: tuple[str, ...], path: Path = PUBLISHED / "survey_throughput.csv") -> Survey:
    """Every method with every model, network and number of GPUs."""
    columns = ("dnn", "batch_per_gpu", "network", "method", "gpus", "samples_per_s", "deviation")
    found = Survey({}, {})
    for row in rows(path, columns):
        throughput = Measured(
            row.text("dnn"), row.count("batch_per_gpu"), row.text("network"), row.text("method"),
            row.count("gpus"), row.number("samples_per_s"),
        )  # fmt: skip
        if throughput.method == "single GPU":
            found.single_s[throughput.model] = throughput.iteration_s
            continue
        if throughput.method not in methods:
            raise row.wrong("method", f'"{throughput.method}" is not one of {", ".join(methods)}')
        key = (throughput.network, throughput.model, throughput.gpus, throughput.method)
        if key in found.measured:
            raise row.wrong("gpus", "the same measurement stands above")
        found.measured[key] = throughput
    for network in found.names("network"):
        for model in found.names("model"):
            if model not in found.single_s:
                raise InputError(f"{path}: method: no line has the single GPU of {model}")
            for gpus in found.names("gpus"):
                for method in methods:
                    if (network, model, gpus, method) not in found.measured:
                        raise InputError(
                            f"{path}: gpus: no line has {method} of {model} on {network} with {gpus}"
                        )
    return found
