"""Which programs a shell script calls: the first words of its commands.

A reading of shell that is good enough for scripts of people: quotes, here-documents, substitutions,
arrays, case and functions. What a variable names is not known.
"""

from __future__ import annotations

import re

KEYWORDS = set(
    "if then else elif fi do done while until ! time { } exec command builtin nohup env sudo".split()
)
BUILTINS = set(
    ". : [ [[ alias bg break cd continue declare echo eval exit export false fg getopts hash in jobs kill "
    "let local mapfile popd printf pushd pwd read readonly return set shift shopt source test trap true "
    "type ulimit umask unalias unset wait".split()
)
HERE_DOCUMENT = re.compile(
    r"(<<-?\s*(['\"]?)(\w+)\2[^\n]*\n).*?^\s*\3$", re.DOTALL | re.MULTILINE
)
ASSIGNMENT = re.compile(r"^\w+(\[[^\]]*\])?\+?=")
FUNCTION = re.compile(r"^\s*(?:function\s+)?([\w:.-]+)\s*\(\)\s*[{(]", re.MULTILINE)
NAME = re.compile(r"^(?:(?:/usr)?/s?bin/)?([A-Za-z_][\w.+-]*)$")


def functions(text: str) -> set[str]:
    return set(FUNCTION.findall(text))


def program(word: str) -> str:
    """The program that a word names; empty when it names none, or one of the tree by a path."""
    match = NAME.match(word)
    return match.group(1) if match else ""


class _Reader:
    def __init__(self, text: str) -> None:
        text = HERE_DOCUMENT.sub(r"\1", text)
        self.text = FUNCTION.sub(" {", text.replace("\\\n", " "))
        self.at = 0
        self.found: set[str] = set()

    def ahead(self, what: str) -> bool:
        return self.text.startswith(what, self.at)

    def skip_past(self, what: str) -> None:
        place = self.text.find(what, self.at)
        self.at = len(self.text) if place < 0 else place + len(what)

    def dollar(self) -> None:
        """A substitution; only commands inside are of interest."""
        if self.ahead("$(("):
            self.skip_past("))")
        elif self.ahead("$("):
            self.at += 2
            self.commands(")")
        elif self.ahead("${"):
            self.skip_past("}")
        else:
            self.at += 1

    def word(self) -> str:
        """The next word; empty when it is not only constant text."""
        start, plain = self.at, True
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;|&()<>":
            letter = self.text[self.at]
            if letter == "$":
                plain = False
                self.dollar()
            elif letter == "`":
                plain = False
                self.at += 1
                self.commands("`")
            elif letter == '"':
                self.at += 1
                while self.at < len(self.text) and self.text[self.at] != '"':
                    if self.text[self.at] == "$":
                        plain = False
                        self.dollar()
                    else:
                        self.at += 2 if self.text[self.at] == "\\" else 1
                self.at += 1
            elif letter == "'":
                self.at += 1
                self.skip_past("'")
            else:
                self.at += 2 if letter == "\\" else 1
        text = self.text[start : self.at]
        return text.replace('"', "").replace("'", "") if plain else text[:1] + "$"

    def patterns(self) -> bool:
        """Past the patterns of a case's branch; False at its end."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\n;":
                self.at += 1
            elif self.ahead("#"):
                self.skip_past("\n")
            elif re.match(r"esac\b", self.text[self.at :]):
                self.at += len("esac")
                return False
            else:
                self.skip_past(")")
                return True
        return False

    def commands(self, closing: str = "") -> None:
        first, cases, array = True, 0, False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if closing and letter == closing and not array:
                self.at += 1
                return
            if letter in " \t":
                self.at += 1
            elif letter == "#":
                self.skip_past("\n")
                first = True
            elif self.ahead(";;") and cases:
                cases -= not self.patterns()
                first = True
            elif first and self.ahead("(("):
                self.skip_past("))")
                first = False
            elif letter in "<>":
                self.redirection()
            elif letter == "&" and self.text[self.at + 1 : self.at + 2] == ">":
                self.at += 1
            elif letter in "\n;|&(":
                self.at += 1
                first = not array
            elif letter == ")":
                self.at += 1
                array, first = False, True
            else:
                word = self.word()
                if array or not first:
                    continue
                if word == "case":
                    self.skip_past(" in")
                    cases += self.patterns()
                elif ASSIGNMENT.match(word):
                    array = word.endswith("=") and self.ahead("(")
                    self.at += array
                elif word == "[[":
                    self.skip_past("]]")
                elif word not in KEYWORDS and not word.startswith("-"):
                    if word not in ("for", "select", "function") and program(word):
                        self.found.add(word)
                    first = False

    def redirection(self) -> None:
        if self.ahead("<(") or self.ahead(">("):
            self.at += 2
            self.commands(")")
            return
        while self.at < len(self.text) and self.text[self.at] in "<>&|":
            self.at += 1
        while self.ahead(" "):
            self.at += 1
        self.word()


def programs(text: str) -> set[str]:
    """Names of programs that the script calls, builtins and its own functions left out."""
    reader = _Reader(text)
    reader.commands()
    own = functions(text)
    return {program(word) for word in reader.found if word not in own} - BUILTINS - KEYWORDS
