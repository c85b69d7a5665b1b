"""Find the line of a key in TOML text that a parser has accepted.

The parser gives values without places. This scanner is run only where something is
wrong, and leans on the text being well formed: it finds where keys begin and skips
everything else.
"""

import tomllib
from contextlib import suppress

from remote_resident.manifest_rules import KeyPath

_BLANK = " \t"
_BETWEEN = " \t\r\n"
_ENDS_SCALAR = frozenset(",]}#\r\n")
_ENDS_BARE = frozenset(" \t.=]")


def line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int:
    """Give the line of a key, or of the nearest thing around it that is there."""
    for end in range(len(path), 0, -1):
        if line := lines.get(path[:end]):
            return line
    return 1


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map every table, key and item of an array to the line on which it begins."""
    scan = _Scan(text)
    # arrays in arrays beyond what Python's stack holds: what was seen will do
    with suppress(RecursionError):
        scan.document()
    return scan.lines


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.lines: dict[KeyPath, int] = {}
        self._last: dict[KeyPath, int] = {}
        """Array of tables -> index of its latest table."""
        self._counted = (0, 1)

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip_to_content():
            if self._at("[["):
                table = self._header(2)
            elif self._at("["):
                table = self._header(1)
            else:
                self._pair(table)

    def _header(self, brackets: int) -> KeyPath:
        line = self._line()
        self.pos += brackets
        key = self._key()
        self.pos += brackets
        path: KeyPath = ()
        for part in key[:-1]:
            path = self._latest((*path, part), line)
        path = (*path, key[-1])
        self.lines.setdefault(path, line)
        if brackets == 1:
            return path
        self._last[path] = self._last.get(path, -1) + 1
        return self._latest(path, line)

    def _latest(self, path: KeyPath, line: int) -> KeyPath:
        """Note where a part of a header is; step into the array's latest table."""
        self.lines.setdefault(path, line)
        if path in self._last:
            path = (*path, self._last[path])
            self.lines.setdefault(path, line)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self.pos += 1  # the sign =
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_BLANK)
            parts.append(self._key_part())
            self._skip(_BLANK)
            if not self._at("."):
                return parts
            self.pos += 1

    def _key_part(self) -> str:
        start = self.pos
        if self.text[start] in "\"'":
            self._string()
            # the parser knows the escapes
            return str(tomllib.loads(f"k={self.text[start : self.pos]}")["k"])
        while self.text[self.pos] not in _ENDS_BARE:
            self.pos += 1
        return self.text[start : self.pos]

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        if self.text[self.pos] in "\"'":
            self._string()
        elif self._at("["):
            self._array(path)
        elif self._at("{"):
            self._inline_table(path)
        else:
            while self.pos < len(self.text) and (
                self.text[self.pos] not in _ENDS_SCALAR
            ):
                self.pos += 1

    def _array(self, path: KeyPath) -> None:
        self.pos += 1
        index = 0
        while self._skip_to_content() and not self._at("]"):
            self.lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1
            if self._skip_to_content() and self._at(","):
                self.pos += 1
        self.pos += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.pos += 1
        while self._skip_to_content() and not self._at("}"):
            self._pair(path)
            if self._skip_to_content() and self._at(","):
                self.pos += 1
        self.pos += 1

    def _string(self) -> None:
        quote = self.text[self.pos]
        if not self._at(quote * 3):
            self.pos = self._end(quote, self.pos + 1)
            return
        self.pos = self._end(quote * 3, self.pos + 3)
        # up to two quotes may stand right before the three that end it
        while self._at(quote):
            self.pos += 1

    def _end(self, delimiter: str, pos: int) -> int:
        escapes = delimiter[0] == '"'
        while not self.text.startswith(delimiter, pos):
            pos += 2 if escapes and self.text[pos] == "\\" else 1
        return pos + len(delimiter)

    def _at(self, token: str) -> bool:
        return self.text.startswith(token, self.pos)

    def _skip(self, characters: str) -> None:
        while self.pos < len(self.text) and self.text[self.pos] in characters:
            self.pos += 1

    def _skip_to_content(self) -> bool:
        """Pass blanks, line ends and comments; say whether anything follows."""
        self._skip(_BETWEEN)
        while self._at("#"):
            end = self.text.find("\n", self.pos)
            self.pos = len(self.text) if end < 0 else end
            self._skip(_BETWEEN)
        return self.pos < len(self.text)

    def _line(self) -> int:
        before, line = self._counted
        line += self.text.count("\n", before, self.pos)
        self._counted = (self.pos, line)
        return line
