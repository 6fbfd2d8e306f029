"""What a JSON trace must keep to for Perfetto to open it and show it whole."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
METADATA = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def check_trace(text: str) -> list[Event]:
    """The events of the trace; AssertionError names the first thing that is wrong.

    Trace Event Format: every event has its phase, process and track; slices have a begin and a
    length, and those of one track stand beside or within each other; what has slices is named.
    """
    trace = json.loads(text)
    events = trace["traceEvents"]
    assert isinstance(events, list), "traceEvents is no list"
    for event in events:
        _check_event(event)
    _check_names(events)
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        _check_nesting(slices)
    return events


def _check_event(event: Event) -> None:
    for key in ("pid", "tid"):
        assert isinstance(event.get(key), int) and event[key] >= 0, f"{key} of {event}"
    assert isinstance(event.get("name"), str) and event["name"], f"name of {event}"
    phase = event.get("ph")
    assert phase in ("X", "i", "M"), f"phase of {event}"
    if phase == "M":
        assert event["name"] in METADATA, f"metadata of {event}"
        assert METADATA[event["name"]] in event["args"], f"args of {event}"
        return
    assert isinstance(event.get("ts"), (int, float)) and event["ts"] >= 0, f"ts of {event}"
    if phase == "X":
        assert isinstance(event.get("dur"), (int, float)) and event["dur"] >= 0, f"dur of {event}"
    else:
        assert event.get("s") == "t", f"scope of {event}"


def _check_names(events: Iterable[Event]) -> None:
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    tracks = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["pid"] in processes, f"process without a name: {event}"
        assert (event["pid"], event["tid"]) in tracks, f"track without a name: {event}"


def _check_nesting(slices: list[Event]) -> None:
    """A slice ends before the next begins, or not before it ends."""
    open_ends: list[float] = []
    grain = 1e-6  # of a microsecond: what a sum of two decimals may be off
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= event["ts"] + grain:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + grain, f"overlaps in part: {event}"
        open_ends.append(end)


def tracks_named(events: Iterable[Event], process: str) -> dict[str, list[Event]]:
    """Slices and instants of the process of that name, by the name of their track."""
    pid = next(
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"] == process
    )
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == pid
    }
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["pid"] == pid and event["ph"] != "M":
            found[names[event["tid"]]].append(event)
    return found
