"""Finds the canary's field in an answer as it streams, and takes it out: `[ref: ...]`, or `"ref": "..."` in JSON.

Text is held back only while what has come could be the beginning of a field, at most `LONGEST` characters; everything
else passes at once. A field that holds no words of a marker is a citation of somebody's and stays.
"""

import re
from collections.abc import Callable

LONGEST = 200
_BODY, _SPACE = 120, r"\s{0,8}"
Ours = Callable[[str], bool]


def _chain(atoms: list[str]) -> "re.Pattern[str]":
    """What is a beginning of the atoms, one after the other."""
    pattern = ""
    for atom in reversed(atoms):
        pattern = f"(?:{atom}{pattern})?"
    return re.compile(pattern, re.IGNORECASE)


class FieldPattern:
    """The forms of one field; shared by all answers."""

    def __init__(self, name: str) -> None:
        letters = [re.escape(letter) for letter in name]
        inline = [r"\[", _SPACE, *letters, r"[:=\s]", rf"[^\[\]]{{0,{_BODY}}}", r"\]"]
        member = ['"', *letters, '"', _SPACE, ":", _SPACE, '"', rf'[^"\\]{{0,{_BODY}}}', '"']
        later = [",", _SPACE, *member]
        self.forms = [re.compile("".join(atoms), re.IGNORECASE) for atoms in (inline, member, later)]
        self.begun = [_chain(atoms) for atoms in (inline, member, later)]
        self.first = re.compile(r'[\["]|,')
        self.length = len(name)

    def body(self, field: str) -> str:
        """What a whole field holds."""
        if field[-1] == "]":
            return field.lstrip("[").lstrip()[self.length + 1 : -1]
        return field[:-1].rpartition('"')[2]


class FieldReader:
    """One text on its way: `feed` gives back what may be shown of it, `found` is what the fields held.

    With `strip` false everything is shown, and only read. `ours` says whether a field's content is a marker's, well
    copied or not.
    """

    def __init__(self, pattern: FieldPattern, ours: Ours, *, strip: bool) -> None:
        self.found: list[str] = []
        self.held = ""
        """What waits."""
        self._pattern, self._ours, self._strip = pattern, ours, strip
        self._eating = ""
        self._begun = False

    def feed(self, text: str) -> str:
        """The text so far, less what was shown before and what waits or is a field."""
        data, at = self.held + text, 0
        shown: list[str] = []
        while at < len(data):
            if self._eating:
                at = self._eat(data, at)
                continue
            start = self._pattern.first.search(data, at)
            if start is None:
                at = self._show(shown, data, at, len(data))
                break
            at = self._show(shown, data, at, start.start())
            whole = next((found for form in self._pattern.forms if (found := form.match(data, at))), None)
            if whole is not None and self._ours(content := self._pattern.body(whole.group())):
                self._field(whole.group(), content)
                at = whole.end()
            elif whole is None and len(data) - at < LONGEST and self._may_go_on(data, at):
                break
            else:
                at = self._show(shown, data, at, at + 1)
        self.held = data[at:]
        return "".join(shown) if self._strip else text

    def end(self) -> str:
        """What still waits, now that nothing follows."""
        held, self.held = self.held, ""
        return held if self._strip and not self._eating else ""

    def _may_go_on(self, data: str, at: int) -> bool:
        return any(form.fullmatch(data, at) for form in self._pattern.begun)

    def _show(self, shown: list[str], data: str, at: int, end: int) -> int:
        if end > at:
            piece = data[at:end]
            self._begun = self._begun or not piece.isspace()
            shown.append(piece)
        return end

    def _field(self, field: str, content: str) -> None:
        self.found.append(content)
        # What parted the field from the text goes with it: a line's end, or the comma behind a first member.
        if field[0] == '"':
            self._eating = " \t\r\n,"
        elif field[0] == "[" and not self._begun:
            self._eating = " \t\r\n"

    def _eat(self, data: str, at: int) -> int:
        while at < len(data) and data[at] in self._eating:
            if data[at] == ",":
                self._eating = " \t\r\n"
            at += 1
        if at < len(data):
            self._eating = ""
        return at
