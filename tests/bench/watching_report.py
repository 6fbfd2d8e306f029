"""What watching costs, for a person, and the goals that is held against."""

from __future__ import annotations

from report import microseconds, size_name, table

MOST = 1.01
THROUGHPUT_FROM = 1 << 20  # bytes: smaller operations say what a post costs


def figures_text(part: dict) -> str:
    rows = [
        [
            size_name(row["bytes"]), row["way"], microseconds(row["p50_us"]),
            f"{row['over_plain']:.4f}", f"{row['spread']:.4f}", str(row["rounds"]),
        ]
        for row in part["figures"]
    ]  # fmt: skip
    heads = ["size", "way", "p50 us", "over plain", "spread of it", "rounds"]
    return f"{part['place']}\n" + table(heads, rows)


def costs_text(part: dict) -> str:
    rows = []
    for row in part["costs"]:
        instructions = row.get("instructions")
        counted = "-" if instructions is None else f"{instructions:.0f}"
        rows.append([size_name(row["bytes"]), row["way"], f"{row['data_thread_ns']:.0f}", counted])
    heads = ["one operation of", "way", "data thread ns", "instructions of the service"]
    return table(heads, rows)


def kept_text(part: dict) -> str:
    rows = [
        [when, row["way"], f"{row['board_bytes'] / 1e6:.1f} MB", f"{row['trace_bytes'] / 1e6:.2f} MB"]
        for when, kept in part["kept"].items()
        for row in kept
    ]
    return table(["what is kept", "way", "board", "trace of the job"], rows)


def goals(parts: list[dict]) -> list[dict]:
    """With everything on, an operation takes at most 1 % longer. Of small ones there is no goal: they
    show what is there to be saved."""
    found = []
    for part in parts:
        before = {row["bytes"]: row for row in part["figures"] if row["way"] == "before"}
        for row in part["figures"]:
            if row["bytes"] < THROUGHPUT_FROM or row["way"] != "watched":
                continue
            ratio = row["over_plain"]
            against = "plain"
            if row["bytes"] in before:
                ratio /= before[row["bytes"]]["over_plain"]
                against = "before"
            found.append(
                {
                    "what": f"{part['place']}, {size_name(row['bytes'])}: watched / {against}",
                    "value": ratio, "goal": f"<= {MOST:g}", "met": ratio <= MOST,
                }
            )  # fmt: skip
        for row in part["kept"].get("after", []):
            first = next(kept for kept in part["kept"]["before"] if kept["way"] == row["way"])
            ratio = row["board_bytes"] / first["board_bytes"]
            found.append(
                {
                    "what": f"{part['place']}, {row['way']}: board after / before the load",
                    "value": ratio, "goal": "1", "met": ratio == 1,
                }
            )  # fmt: skip
    return found


def goals_text(reached: list[dict]) -> str:
    rows = [
        [row["what"], f"{row['value']:.4f}", row["goal"], "met" if row["met"] else "NOT MET"]
        for row in reached
    ]
    return table(["what", "measured", "goal", ""], rows)
