"""Prometheus' text form, read strictly: what this refuses, a scraper may refuse too."""

from __future__ import annotations

import dataclasses
import re

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


@dataclasses.dataclass
class Family:
    """One metric with all of its samples: labels and the number."""

    name: str
    help: str
    type: str = "untyped"
    samples: list[tuple[dict[str, str], float]] = dataclasses.field(default_factory=list)

    def value(self, **labels: str) -> float:
        """The value of the one sample that has these labels."""
        found = [number for has, number in self.samples if labels.items() <= has.items()]
        if len(found) != 1:
            raise KeyError(f"{self.name}{labels}: {len(found)} samples")
        return found[0]


_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def _labels(text: str) -> dict[str, str]:
    labels = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError(f"no label at {at} of {text!r}")
        labels[match[1]] = re.sub(r"\\.", lambda found: _ESCAPES[found[0]], match[2])
        at = match.end()
    return labels


def parse(text: str) -> dict[str, Family]:
    """The families by their names; ValueError when a line belongs to none."""
    families: dict[str, Family] = {}
    current: Family | None = None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, help_text = line[7:].split(" ", 1)
            if name in families:
                raise ValueError(f"{name} comes twice")
            current = families[name] = Family(name, help_text)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            if current is None or current.name != name:
                raise ValueError(f"a type without its family: {line}")
            current.type = kind
        elif (match := _SAMPLE.match(line)) and current is not None:
            suffix = match[1].removeprefix(current.name)
            if suffix not in (("_sum", "_count") if current.type == "summary" else ("",)):
                raise ValueError(f"not of {current.name}: {line}")
            current.samples.append((_labels(match[2] or ""), float(match[3])))
        else:
            raise ValueError(f"neither a comment nor a sample: {line!r}")
    return families
