"""headracectl top in a real terminal: tmux shows it, types its keys and changes its size."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.directory import OwnDirectory
from support.ranks import Ranks
from support.service import Service, build_directory
from support.unittests import run_tests

PATIENCE_S = 60.0
INTERVAL_S = 0.2


class Tmux:
    """One terminal of a tmux server of its own, which ends with it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._own = OwnDirectory("headrace-tmux-")
        self.directory = self._own.path
        self._socket = os.path.join(self.directory, "tmux")
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
        environment.pop("TMUX", None)
        self._environment = environment
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), "sh")
        self.server = int(self._tmux("display-message", "-p", "#{pid}"))

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=self._environment, check=True, capture_output=True, text=True, timeout=30,
        ).stdout  # fmt: skip

    def run(self, command: str) -> None:
        self._tmux("send-keys", "-l", command)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def close(self) -> None:
        # The pane's own processes end with the server: it hangs up on them.
        subprocess.run(
            ["tmux", "-S", self._socket, "kill-server"],
            env=self._environment, capture_output=True, timeout=30,
        )  # fmt: skip
        self._own.close()


@unittest.skipUnless(shutil.which("tmux"), "needs tmux")
class TopScreen(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.__enter__()
        self.terminal = Tmux(100, 30)
        self.addCleanup(self.terminal.close)

    def ranks(self, job: str = "bert") -> Ranks:
        """Three ranks, of which the last does not post."""
        ranks = Ranks(self.service, 3, job=job)
        self.addCleanup(ranks.__exit__)
        ranks.each("tensor", name="encoder.weight", count=4096)
        for _ in range(3):
            ranks.each("post", kind="all_reduce", name="encoder.weight")
            ranks.each("wait")
        for member in ranks.members[:2]:
            member.call("post", kind="all_reduce", name="encoder.weight")
        return ranks

    @staticmethod
    def end_operation(ranks: Ranks) -> None:
        """Posts what the last rank held back."""
        ranks[2].call("post", kind="all_reduce", name="encoder.weight")
        ranks.each("wait")

    def start(self, environment: str = "") -> None:
        program = shlex.join([
            os.path.join(build_directory(), "headracectl"), "--board", self.service.board,
            "--socket", self.service.socket, "top", "--interval", str(INTERVAL_S),
        ])  # fmt: skip
        self.terminal.run(f"{environment} {program}")

    def see(self, *patterns: str) -> str:
        """The screen, once it shows all of these."""
        return self.wait_for(
            lambda screen: all(re.search(pattern, screen) for pattern in patterns), patterns
        )

    def wait_for(self, holds: Callable[[str], bool], what: object) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(screen := self.terminal.screen()):
            self.assertLess(time.monotonic(), deadline, f"{what} is not on the screen:\n{screen}")
            time.sleep(0.05)
        return screen

    def job(self, name: str) -> dict:
        return next(row for row in self.service.ctl_json("jobs")["jobs"] if row["name"] == name)

    def await_job(self, name: str, key: str, value: object) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.job(name)[key] != value:
            self.assertLess(time.monotonic(), deadline, self.job(name))
            time.sleep(0.05)

    def top_pid(self) -> int:
        """The process of top, which is a child of the terminal's shell."""
        shell = int(self.terminal._tmux("display-message", "-p", "#{pane_pid}"))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with open(f"/proc/{shell}/task/{shell}/children", encoding="utf-8") as children:
                pids = children.read().split()
            for pid in pids:
                # Another one of the shell's may end meanwhile.
                with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                    if comm.read().strip() == "headracectl":
                        return int(pid)
            time.sleep(0.05)
        raise AssertionError("top does not run")

    def test_shows_jobs_lanes_ranks_and_whom_all_wait_for(self) -> None:
        self.ranks()
        self.start()
        screen = self.see(
            r"^ headraced [\d.]+ .* 1 job, 3 ranks, 1 wait ",
            r"bert +running +3 here of 3",
            r"shm0 +[█·▏▎▍▌▋▊▉]{16}",
            r"rank 2 of job bert not ready for [\d.]+ m?s",
            r"q quit  h help",
        )
        self.assertLessEqual(max(map(len, screen.splitlines())), 100)

    def test_follows_the_size_of_the_terminal(self) -> None:
        self.ranks()
        self.start()
        self.see("bert", "q quit")
        for columns, lines in ((80, 24), (40, 12), (20, 5), (132, 43), (100, 30)):
            self.terminal.resize(columns, lines)

            def fits(screen: str, columns: int = columns, lines: int = lines) -> bool:
                shown = screen.splitlines()
                title, footer = shown[0], shown[-1]
                return (
                    len(shown) == lines
                    and "headraced" in title
                    and footer.startswith("q quit")
                    and (columns < 100 or "OLDEST WAIT" in screen)
                )

            self.wait_for(fits, f"top at {columns}x{lines}")

    def test_pauses_the_job_after_a_question_and_lets_it_go_on(self) -> None:
        ranks = self.ranks()
        self.start()
        self.see(r"bert +running")
        self.terminal.press("p")
        self.see(r"Pause job bert .*y/n")
        self.terminal.press("n")
        self.see("Nothing was changed")
        self.assertFalse(self.job("bert")["paused"])
        self.terminal.press("p")
        self.see(r"Pause job bert .*y/n")
        self.terminal.press("y")
        self.see("Job bert pauses")
        self.end_operation(ranks)
        # It holds from the next operation on.
        ranks.each("post", kind="all_reduce", name="encoder.weight")
        self.await_job("bert", "paused", True)
        self.see(r"bert +running, paused", r"paused by uid \d+")
        self.assertFalse(ranks[0].call("done"))
        self.terminal.press("p")
        self.see(r"Resume job bert\?")
        self.terminal.press("y")
        self.await_job("bert", "paused", False)
        ranks.each("wait")

    def test_gives_the_selected_job_more_weight(self) -> None:
        self.ranks()
        vision = self.ranks("vision")
        self.start()
        self.see("bert", "vision")
        self.terminal.press("s", "s", "s", "s", "s")  # to the sort by name
        self.see(r"sort: name", r"bert[^\n]*\n[^\n]*vision")
        # The job that was first is selected whatever stands above it now: go to the top.
        self.terminal.press("Up", "Up", "Down")
        self.terminal.press("+")
        self.see("Job vision has weight 2")
        self.end_operation(vision)
        vision.each("post", kind="all_reduce", name="encoder.weight")
        self.await_job("vision", "weight", 2)
        self.assertEqual(self.job("bert")["weight"], 1)

    def test_filters_and_helps(self) -> None:
        self.ranks()
        self.ranks("vision")
        self.start()
        self.see("bert", "vision")
        self.terminal.press("/")
        self.terminal.press("v", "i", "s")
        self.wait_for(lambda screen: "bert" not in screen and "/vis_" in screen, "the filter")
        self.terminal.press("Enter")
        self.see(r"/ filter: vis")
        self.terminal.press("Escape")
        self.see("bert")
        self.terminal.press("h")
        self.see("keys and columns", "Any key goes back")
        self.terminal.press("x")
        self.see("bert", "q quit")

    def test_says_in_the_title_that_the_service_is_gone_and_keeps_what_it_wrote(self) -> None:
        self.ranks()
        self.start()
        self.see("not ready")
        self.service.kill()
        self.see(r"gone: this is what it wrote last", "bert", "rank 2 of job bert not ready")
        os.unlink(self.service.board)
        time.sleep(3 * INTERVAL_S)
        self.see(r"gone: this is what it wrote last", "rank 2 of job bert not ready")

    def test_works_in_terminals_of_every_usual_kind(self) -> None:
        self.ranks()
        for kind in ("xterm", "xterm-256color", "screen", "linux", "vt100"):
            self.start(f"TERM={kind}")
            self.see("headraced", "bert", "rank 2 of job bert", "q quit")
            self.terminal.press("q")
            self.wait_for(lambda screen: "q quit" not in screen.splitlines()[-1], "the end")
            self.terminal.run("clear")

    def test_does_without_utf8(self) -> None:
        self.ranks()
        self.start("LC_ALL=C")
        self.assertTrue(self.see("bert", r"shm0 +[#.]{16}").isascii())

    def test_restores_the_terminal_however_it_ends(self) -> None:
        self.ranks()
        places = [os.path.join(self.terminal.directory, name) for name in ("before", "after", "code")]
        before, after, code = map(shlex.quote, places)
        for way, expected in (("q", 0), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
            self.terminal.run(f"clear; stty -a > {before}")
            self.start()
            self.see("q quit")
            if isinstance(way, str):
                self.terminal.press(way)
            else:
                os.kill(self.top_pid(), way)
            self.wait_for(lambda screen: "q quit" not in screen, "the end")
            # A shell whose child was interrupted does no more of the same line.
            self.terminal.run(f"echo $? > {code}; stty -a > {after}; echo it-$((40+2))-ended")
            self.see("it-42-ended")
            texts = []
            for place in places:
                with open(place, encoding="utf-8") as file:
                    texts.append(file.read())
            self.assertEqual(texts[0], texts[1])
            self.assertEqual(int(texts[2]), expected)

    def test_refuses_what_is_no_terminal(self) -> None:
        code, text = self.service.ctl("top")
        self.assertEqual(code, 1)
        self.assertIn("terminal", text)
        self.start("TERM=nothing-like-it")
        self.see("TERM", "unknown")


if __name__ == "__main__":
    run_tests()
