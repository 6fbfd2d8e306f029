"""Metrics as operators meet them: promtool's word, the page that tells of them, the dashboard."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT))

from tests.support.exposition import Family, parse
from tests.support.unittests import run_tests

GOLDEN = pathlib.Path(__file__).parent / "golden" / "metrics.txt"
PAGE = ROOT / "service" / "watch" / "METRICS.md"
DASHBOARD = ROOT / "containers" / "grafana" / "headrace.json"
# What Grafana puts in the place of its variables, as far as promtool is concerned.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$node": ".*"}

# With honor_labels, as the page asks for: one job waits, one was paused, a peer is gone for two minutes.
ALERTS_TEST = """
rule_files: [alerts.yml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {series: 'headrace_job_oldest_wait_seconds{instance="a", job="bert", uid="1007"}', values: "60x10"}
      - {series: 'headrace_job_paused{instance="a", job="bert", uid="1007"}', values: "0x10"}
      - {series: 'headrace_job_oldest_wait_seconds{instance="a", job="held", uid="1007"}', values: "60x10"}
      - {series: 'headrace_job_paused{instance="a", job="held", uid="1007"}', values: "1x10"}
      - {series: 'headrace_peer_up{instance="a", peer="b"}', values: "1x2 0x8"}
      - {series: 'headrace_peer_up{instance="a", peer="c"}', values: "1x10"}
      - {series: 'headrace_certificate_expiry_timestamp_seconds{instance="a", certificate="node"}',
         values: "864000x10"}
      - {series: 'headrace_certificate_expiry_timestamp_seconds{instance="b", certificate="node"}',
         values: "8640000x10"}
    alert_rule_test:
      - eval_time: 4m
        alertname: HeadraceJobWaits
        exp_alerts:
          - exp_labels: {instance: a, job: bert, uid: "1007"}
            exp_annotations: {summary: "bert waits on a: headracectl queue --job bert --uid 1007"}
      - eval_time: 4m
        alertname: HeadracePeerDown
        exp_alerts:
          - exp_labels: {instance: a, peer: b}
            exp_annotations: {summary: "a does not reach b: headracectl doctor"}
      - eval_time: 4m
        alertname: HeadraceCertificateEnds
        exp_alerts:
          - exp_labels: {instance: a, certificate: node}
            exp_annotations: {summary: "the node certificate of a ends within a month"}
"""

needs_promtool = unittest.skipUnless(
    shutil.which("promtool"), "promtool is not installed (Debian's prometheus)"
)


def golden() -> dict[str, Family]:
    return parse(GOLDEN.read_text(encoding="utf-8"))


class Exposition(unittest.TestCase):
    @needs_promtool
    def test_promtool_has_nothing_to_say(self) -> None:
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=GOLDEN.read_bytes(), capture_output=True,
            check=False,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))

    @needs_promtool
    def test_promtool_would_find_a_counter_without_total(self) -> None:
        text = GOLDEN.read_text(encoding="utf-8").replace("_bytes_total", "_bytes")
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False
        )
        self.assertNotEqual(done.returncode, 0)

    def test_a_job_of_a_nasty_name_stands_in_its_label_alone(self) -> None:
        jobs = {labels["job"] for labels, _ in golden()["headrace_job_info"].samples}
        self.assertEqual(jobs, {"bert", "gone", 'a\\b"c</script><script>alert(1)</script>'})

    def test_of_two_jobs_of_one_name_the_younger_one_has_it(self) -> None:
        numbers = {
            labels["job"]: labels["job_id"]
            for labels, _ in golden()["headrace_job_info"].samples
        }
        self.assertEqual(numbers["gone"], "9")


class Page(unittest.TestCase):
    def test_every_family_stands_there_as_it_is_scraped_and_no_other(self) -> None:
        row = re.compile(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$")
        told = {}
        for line in PAGE.read_text(encoding="utf-8").splitlines():
            if match := row.match(line.replace("|  |", "| - |")):
                name, kind, labels, meaning = match.groups()
                told[name] = (kind, re.findall(r"`(\w+)`", labels), meaning)
        scraped = {
            name: (family.type, list(family.samples[0][0]), family.help)
            for name, family in golden().items()
        }
        self.assertEqual(told, scraped)


def run_promtool(what: str, text: str, **files: str) -> subprocess.CompletedProcess[str]:
    """promtool's word on rules, ``check`` or ``test``; ``files`` lie beside, under their names."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**files, "main": text}.items():
            (pathlib.Path(folder) / f"{name}.yml").write_text(content, encoding="utf-8")
        return subprocess.run(
            ["promtool", what, "rules", "main.yml"], cwd=folder, capture_output=True, text=True,
            check=False,
        )  # fmt: skip


class Advice(unittest.TestCase):
    """The expressions and alerts that the page recommends."""

    def setUp(self) -> None:
        page = PAGE.read_text(encoding="utf-8")
        block = re.search(r"\n\n((?:    .*\n)+)", page[page.index("As alerts:") :])
        self.assertIsNotNone(block)
        self.alerts = textwrap.dedent(block.group(1))
        table = page[page.index("| question |") : page.index("As alerts:")]
        self.expressions = re.findall(r"^\| .* \| `(.*)` \|$", table, re.MULTILINE)

    def test_every_metric_is_scraped(self) -> None:
        known = set(golden())
        for family in golden().values():
            if family.type == "summary":
                known |= {f"{family.name}_sum", f"{family.name}_count"}
        for text in (*self.expressions, *re.findall(r"expr: (.*)", self.alerts)):
            named = set(re.findall(r"\bheadrace_\w+", text))
            self.assertTrue(named, text)
            self.assertLessEqual(named, known, text)

    @needs_promtool
    def test_promtool_takes_every_expression(self) -> None:
        self.assertGreater(len(self.expressions), 3)
        rules = "groups:\n- name: page\n  rules:\n"
        for index, expression in enumerate(self.expressions):
            rules += f"  - record: page:{index}\n    expr: {json.dumps(expression)}\n"
        for text in (rules, self.alerts):
            done = run_promtool("check", text)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @needs_promtool
    def test_alerts_are_given_when_they_should_and_not_of_paused_jobs(self) -> None:
        done = run_promtool("test", ALERTS_TEST, alerts=self.alerts)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Dashboard(unittest.TestCase):
    def setUp(self) -> None:
        self.dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
        self.panels = [each for each in self.dashboard["panels"] if each["type"] != "row"]

    def expressions(self) -> list[str]:
        found = [target["expr"] for panel in self.panels for target in panel["targets"]]
        found += [
            re.sub(r"label_values\((.*), *\w+\)", r"\1", variable["definition"])
            for variable in self.dashboard["templating"]["list"]
            if variable["type"] == "query"
        ]
        for name, value in VARIABLES.items():
            found = [each.replace(name, value) for each in found]
        return found

    def test_every_metric_it_names_is_scraped(self) -> None:
        known = set(golden()) | {"up"}
        for family in golden().values():
            if family.type == "summary":
                known |= {f"{family.name}_sum", f"{family.name}_count"}
        for expression in self.expressions():
            named = set(re.findall(r"\b(?:headrace|process)_\w+", expression))
            self.assertTrue(named or "up" in expression, expression)
            self.assertLessEqual(named, known, expression)

    def test_no_variable_is_left_that_it_does_not_have(self) -> None:
        own = {variable["name"] for variable in self.dashboard["templating"]["list"]}
        for name in re.findall(r"\$(\w+)", json.dumps(self.panels)):
            self.assertIn(name, own | {"__rate_interval"})

    @needs_promtool
    def test_promtool_takes_every_expression(self) -> None:
        rules = "groups:\n- name: dashboard\n  rules:\n"
        for index, expression in enumerate(self.expressions()):
            rules += f"  - record: panel:{index}\n    expr: {json.dumps(expression)}\n"
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(rules)
            file.flush()
            done = subprocess.run(
                ["promtool", "check", "rules", file.name], capture_output=True, text=True,
                check=False,
            )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_panels_have_a_place_of_their_own_and_say_what_they_show(self) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in self.dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            self.assertFalse(taken & cells, panel["title"])
            self.assertLessEqual(place["x"] + place["w"], 24)
            taken |= cells
        numbers = [panel["id"] for panel in self.dashboard["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))
        for panel in self.panels:
            self.assertTrue(panel["description"], panel["title"])
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])


if __name__ == "__main__":
    run_tests()
