"""What the figures of several nodes look like to a person, and the goals they are held against."""

from __future__ import annotations

from report import size_name, table


def _p50_us(part: dict) -> dict[tuple[str, int], float]:
    return {
        (figure["contender"], figure["bytes"]): figure["p50_us"]
        for figure in part["all_reduce_float32_sum"]
    }


def _goal(part: dict, size: int, what: str, value: float, goal: str, met: bool) -> dict:
    return {
        "part": part["title"],
        "bytes": size,
        "what": what,
        "value": value,
        "goal": goal,
        "met": met,
    }


def goals(parts: list[dict]) -> list[dict]:
    """The goals that were set before anything was measured, where their figures are there."""
    reached = []
    for part in parts:
        p50 = _p50_us(part)
        for size_text, ideal_us in part["ideal_us"].items():
            size = int(size_text)
            own = p50.get(("headrace", size))
            if own is None:
                continue
            gloo, plain = p50.get(("gloo", size)), p50.get(("headrace without servers", size))
            if size >= 1 << 26 and part["key"] in ("two", "four", "rails"):
                least = 0.95 if part["key"] == "rails" else 0.97
                share = ideal_us / own
                what = "share of what iperf3 reaches"
                reached.append(_goal(part, size, what, share, f">= {least}", share >= least))
            if size == 1 << 12 and gloo is not None and part["key"] in ("two", "four"):
                ratio = own / gloo
                reached.append(
                    _goal(part, size, "headrace / gloo", ratio, "<= 0.1", ratio <= 0.1)
                )
            if plain is not None:
                ratio = plain / own
                what = "all-reduce / with servers"
                reached.append(_goal(part, size, what, ratio, "> 1", ratio > 1))
        cost = part["costs"].get("headrace")
        if cost and part["key"] == "ranks":
            crossings = cost["sent_bytes_per_node"] / cost["bytes"]
            what = "times over a node's link"
            # The headers of every layer are 4.5 % of a full frame.
            reached.append(
                _goal(part, cost["bytes"], what, crossings, "< 1.1", crossings < 1.1)
            )
    return reached


def goals_table(reached: list[dict]) -> str:
    rows = [
        [
            row["part"],
            size_name(row["bytes"]),
            row["what"],
            f"{row['value']:.3f}",
            row["goal"],
            "met" if row["met"] else "NOT MET",
        ]
        for row in reached
    ]
    return table(["part", "size", "what", "measured", "goal", ""], rows)


def _time(value_us: float) -> str:
    return f"{value_us / 1e3:.3f}" if value_us < 1e5 else f"{value_us / 1e3:.1f}"


def part_text(part: dict) -> str:
    wires = part["links"]
    lines = [
        f"{part['title']}",
        f"  TCP by iperf3: {wires['one_way_bits_s'] / 1e6:.0f} Mbit/s one way; every node sends "
        f"and receives {wires['each_way_bits_s'] / 1e6:.0f} Mbit/s while all do",
        f"  UCX over TCP: 4 KiB one way in {wires['latency_s'] * 1e6:.1f} us"
        + (
            f", {wires['ucx_bytes_s'] * 8 / 1e6:.0f} Mbit/s one way"
            if wires["ucx_bytes_s"]
            else ""
        ),
    ]
    lines += [f"  not measured: {name}: {why}" for name, why in part["missing"].items()]
    rows = []
    for figure in part["all_reduce_float32_sum"]:
        ideal_us = part["ideal_us"][str(figure["bytes"])]
        rows.append(
            [
                size_name(figure["bytes"]),
                figure["contender"],
                _time(figure["p50_us"]),
                _time(figure["least_us"]),
                f"{figure['p50_us'] / ideal_us:.2f}",
                f"{100 * ideal_us / figure['p50_us']:.1f}",
                str(figure["samples"]),
            ]
        )
    if rows:
        heads = ["size", "who", "p50 ms", "least ms", "x ideal", "% of ideal", "samples"]
        lines.append(table(heads, rows))
    costs = [
        [
            size_name(cost["bytes"]),
            name,
            f"{cost['cpu_s_per_gb']:.2f}",
            f"{cost['sent_bytes_per_node'] / cost['bytes']:.3f}",
        ]
        for name, cost in part["costs"].items()
    ]
    if costs:
        heads = ["size", "who", "CPU s/GB, all nodes", "times over a node's link"]
        lines.append(table(heads, costs))
    return "\n".join(lines)
