"""Read a shell script as its commands and words; run nothing, and never refuse a text.

It is enough of the language to know which words a command gets: quotes, escapes, comments,
continued lines, here-documents, substitutions. A construct that never ends ends with
the text.
"""

import re
from dataclasses import dataclass, field

LITERAL = "\ue000"
"""Stands for a dollar sign that expands nothing: it was quoted or escaped."""
RUN = "\ue001"
"""Stands for what a command substitution gives, which only a run would tell: alone, or
around the variables that the substitution prints."""
_PRINTS = frozenset("echo printf".split())
_PASSES = _PRINTS | frozenset("printenv cat tr sed base64".split())

_OURS = re.compile("[\ue000-\ue00f]")
_DEEPEST = 40
_BLANK = " \t\r"
_ENDS = "\n;&|()"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPANDED = re.compile(r"\$(\w+)|\$\{(\w+)(?!\w|:?\+)")
"""A variable's value; not its length, nor what stands for it."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, without its quotes."""

    text: str
    line: int
    quoted: bool = False
    """Whether any of it was quoted: then what it expands to is not split."""


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: no pipes, lists or groups in it."""

    line: int
    words: list[Word] = field(default_factory=list)
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    """Those before its first word; with no word they last."""
    bodies: list[Word] = field(default_factory=list)
    """Its here-documents."""


def commands(script: str, line: int = 1, depth: int = 0) -> list[Command]:
    """List the commands of a script in their order, those of substitutions too."""
    reader = _Reader(_OURS.sub("?", script) if depth == 0 else script, line, depth)
    reader.script(closing="")
    return reader.found


class _Reader:
    """One pass over a text; `at` only ever moves on."""

    def __init__(self, text: str, line: int, depth: int) -> None:
        self.text, self.at, self.line, self.depth = text, 0, line, depth
        self.found: list[Command] = []
        self.waiting: list[tuple[Command, str, bool, bool]] = []

    def script(self, closing: str) -> None:
        """Read commands up to the closing character, or to the end."""
        command = Command(self.line)
        while (char := self._peek()) and char != closing:
            if char == "#":
                self._comment()
            elif char in _ENDS:
                self._take()
                if char == "\n":
                    self._here_documents()
                if char == "(" and self.depth < _DEEPEST:
                    self._nested(")")
                command = self._next(command)
            elif char in _BLANK:
                self._take()
            elif char in "<>":
                self._redirection(command)
            else:
                self._word_of(command)
        self._next(command)

    def _next(self, command: Command) -> Command:
        if command.words or command.assignments:
            self.found.append(command)
            return Command(self.line)
        return Command(self.line, bodies=command.bodies)

    def _nested(self, closing: str) -> None:
        self.depth += 1
        self.script(closing)
        self.depth -= 1
        self._take()

    def _peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.text[at] if at < len(self.text) else ""

    def _take(self) -> str:
        char = self._peek()
        self.at += 1
        self.line += char == "\n"
        return char

    def _starts(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _word_of(self, command: Command) -> None:
        word, bare = self._word()
        if word is None:
            return
        if self._peek() in ("<", ">") and bare and word.text.isdigit():
            return  # the number of a descriptor
        match = _ASSIGNMENT.match(word.text)
        if match and not command.words:
            value = Word(word.text[match.end() :], word.line, word.quoted)
            command.assignments.append((match[1], value))
            return
        command.words.append(word)

    def _word(self) -> tuple[Word | None, bool]:
        """Read one word, and say whether it has neither quotes nor escapes."""
        line, parts, quoted, bare = self.line, [], False, True
        while (char := self._peek()) and char not in _BLANK + _ENDS + "<>":
            if char in "'\"":
                quoted, bare = True, False
                parts.append(self._quoted())
            elif char == "\\":
                bare = False
                parts.append(self._escaped())
            else:
                parts.append(self._plain())
        text = "".join(parts)
        return (Word(text, line, quoted) if text or quoted else None), bare

    def _plain(self) -> str:
        char = self._peek()
        if char == "$":
            return self._dollar()
        return self._backquoted() if char == "`" else self._take()

    def _escaped(self) -> str:
        self._take()
        char = self._take()
        return "" if char == "\n" else LITERAL if char == "$" else char

    def _quoted(self) -> str:
        if self._take() == "'":
            return self._up_to("'").replace("$", LITERAL)
        parts = []
        while (char := self._peek()) and char != '"':
            if char == "\\":
                parts.append(self._escaped_in_quotes())
            else:
                parts.append(self._plain())
        self._take()
        return "".join(parts)

    def _escaped_in_quotes(self) -> str:
        following = self._peek(1)
        if following and following in '$`"\\\n':
            return self._escaped()
        return self._take()

    def _up_to(self, closing: str) -> str:
        start = self.at
        end = self.text.find(closing, start)
        end = len(self.text) if end < 0 else end
        self.at = end + len(closing)
        self.line += self.text.count("\n", start, min(self.at, len(self.text)))
        return self.text[start:end]

    def _dollar(self) -> str:
        if self._starts("$'"):
            self._take()
            return self._quoted()
        if self._starts("$((") or self.depth >= _DEEPEST:
            return self._take()
        if self._starts("$("):
            since = len(self.found)
            self.at += 2
            self._nested(")")
            return _printed(self.found[since:])
        return self._braced() if self._starts("${") else self._take()

    def _braced(self) -> str:
        self.at += 2
        self.depth += 1
        parts = ["${"]
        while (char := self._peek()) and char != "}":
            if char in "'\"":
                parts.append(self._quoted())
            elif char == "\\":
                parts.append(self._escaped())
            else:
                parts.append(self._plain())
        self.depth -= 1
        parts.append(self._take())
        return "".join(parts)

    def _backquoted(self) -> str:
        line = self.line
        self._take()
        parts = []
        while (char := self._peek()) and char != "`":
            if char == "\\" and self._peek(1) in ("`", "\\", "$"):
                self._take()
            parts.append(self._take())
        self._take()
        since = len(self.found)
        self._inner("".join(parts), line)
        return _printed(self.found[since:])

    def _inner(self, script: str, line: int) -> None:
        if self.depth < _DEEPEST:
            self.found += commands(script, line, self.depth + 1)

    def _redirection(self, command: Command) -> None:
        if self._starts("<<") and not self._starts("<<<"):
            self._here(command)
            return
        if self._starts("<(") or self._starts(">("):
            self.at += 2
            if self.depth < _DEEPEST:
                self._nested(")")
            return
        while (char := self._peek()) and char in "<>&|":
            self._take()
        while (char := self._peek()) and char in _BLANK:
            self._take()
        self._word()  # where to or from: no word that the command gets

    def _here(self, command: Command) -> None:
        self.at += 2
        indented = self._peek() == "-"
        self.at += indented
        while (char := self._peek()) and char in _BLANK:
            self._take()
        word, bare = self._word()
        if word is not None:
            self.waiting.append((command, word.text, bare, indented))

    def _here_documents(self) -> None:
        """Read the here-documents that the line that just ended announced."""
        waiting, self.waiting = self.waiting, []
        for command, delimiter, expands, indented in waiting:
            line, lines = self.line, []
            while self.at < len(self.text):
                text = self._up_to("\n")
                if (text.lstrip("\t") if indented else text) == delimiter:
                    break
                lines.append(text)
            body = "\n".join(lines)
            command.bodies.append(Word(body, line, quoted=not expands))
            if expands:
                # what it substitutes is run, whoever reads the rest
                self._substitutions(body, line)

    def _substitutions(self, body: str, line: int) -> None:
        if self.depth >= _DEEPEST:
            return
        reader = _Reader(body, line, self.depth + 1)
        while char := reader._peek():
            if char == "\\":
                reader._take()
                reader._take()
            else:
                reader._plain()
        self.found += reader.found


def _printed(found: list[Command]) -> str:
    """Give what a substitution of these commands stands for."""
    words = [[word.text for word in command.words] for command in found]
    if not all(texts and texts[0] in _PASSES for texts in words):
        return RUN
    names = [n for texts in words if texts[0] == "printenv" for n in texts[1:]]
    for texts in words:
        if texts[0] in _PRINTS:
            names += [a or b for a, b in _EXPANDED.findall(" ".join(texts[1:]))]
    # each once: what nests would double with every level
    shown = "".join(f"${{{name}}}" for name in dict.fromkeys(names) if is_name(name))
    return f"{RUN}{shown}{RUN}" if shown else RUN


def is_name(text: str) -> bool:
    """Say whether a text can be a variable's name."""
    return _NAME.fullmatch(text) is not None
