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
        self.held += text
        shown: list[str] = []
        while self.held:
            if self._eating:
                self._eat()
                if self._eating:
                    break
                continue
            start = self._pattern.first.search(self.held)
            if start is None:
                self._show(shown, len(self.held))
                break
            if start.start():
                self._show(shown, start.start())
                continue
            whole = next((found for form in self._pattern.forms if (found := form.match(self.held))), None)
            if whole is not None:
                self._field(shown, whole.group())
            elif len(self.held) < LONGEST and any(form.fullmatch(self.held) for form in self._pattern.begun):
                break
            else:
                self._show(shown, 1)
        return "".join(shown) if self._strip else text

    def end(self) -> str:
        """What still waits, now that nothing follows."""
        held, self.held = self.held, ""
        return held if self._strip and not self._eating else ""

    def _show(self, shown: list[str], length: int) -> None:
        text, self.held = self.held[:length], self.held[length:]
        self._begun = self._begun or not text.isspace()
        shown.append(text)

    def _field(self, shown: list[str], field: str) -> None:
        content = self._pattern.body(field)
        if not self._ours(content):
            self._show(shown, 1)
            return
        self.found.append(content)
        self.held = self.held[len(field) :]
        # What parted the field from the text goes with it: a line's end, or the comma behind a first member.
        if field[0] == '"':
            self._eating = " \t\r\n,"
        elif field[0] == "[" and not self._begun:
            self._eating = " \t\r\n"

    def _eat(self) -> None:
        rest = self.held.lstrip(self._eating.replace(",", ""))
        if rest.startswith(",") and "," in self._eating:
            rest, self._eating = rest[1:], " \t\r\n"
            rest = rest.lstrip()
        self.held = rest
        if rest:
            self._eating = ""
