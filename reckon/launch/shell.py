"""Reads shell scripts that launch a run, without running anything.

Followed are variables, arrays, arithmetic, continuations, quotes, comments, here-documents and
simple tests; what is not (loops, command substitution, functions) is noted.
"""

from __future__ import annotations

import operator
import re
from dataclasses import field
from pathlib import Path

from predictor.errors import InputError
from predictor.files import is_file
from predictor.records import dataclass
from reckon.launch.arithmetic import arithmetic
from reckon.launch.slurm import granted


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written: pieces of text, each with its quote ('', single or double)."""

    pieces: tuple[tuple[str, str], ...]

    @property
    def raw(self) -> str:
        """The text without quotes."""
        return "".join(text for text, _ in self.pieces)


@dataclass(slots=True)
class Script:
    """What a script comes to.

    commands  the words of each command, variables put in
    files     texts that here-documents write, by file name
    batch     words of `#SBATCH` lines
    notes     what was not followed
    variables  their words when the script ends
    texts     of here-documents, and whether variables are put in
    """

    commands: list[list[str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    batch: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    texts: list[tuple[str, bool]] = field(default_factory=list)


MARK = "@here-document"
"""Command that stands where a here-document is written to a file: its number, 1 to write or 2 to
add, the file."""


def read_script(text: str, folder: Path | None = None) -> Script:
    """The commands of a shell script, or of one launch line.

    folder  that the text is from; files that it sources are read from there. None: none are

    Raises InputError for quotes that are not closed.
    """
    script = Script()
    for line in text.splitlines():
        if match := re.match(r"#SBATCH\s+([^#]*)", line.strip()):
            script.batch += match[1].split()
    text = _here_documents(text, script)
    reader = _Reader(script, folder)
    reader.values |= granted(options(script.batch))
    for statement in _statements(_tokens(text)):
        reader.statement(statement)
    script.variables = reader.values
    return script


def _here_documents(text: str, script: Script) -> str:
    """Take `cat > FILE <<EOF` apart: the rest of the script, with a mark where a text is written;
    the texts by their marks, for now."""
    kept: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        start = re.search(r"<<-?\s*(['\"]?)(\w+)['\"]?", line)
        if not start or line.lstrip().startswith("#"):
            kept.append(line)
            continue
        body: list[str] = []
        for inner in lines:
            if inner.strip() == start[2]:
                break
            body.append(inner)
        if target := re.search(r"(>>?)\s*([^\s<>]+)", line.replace(start[0], " ")):
            script.texts.append(("\n".join(body) + "\n", not start[1]))
            kept.append(f"{MARK} {len(script.texts) - 1} {len(target[1])} {target[2]}")
    return "\n".join(kept)


LEXEME = re.compile(
    r"""(?P<joined>\\\n)|\\(?P<escaped>.?)|'(?P<single>[^']*)'|"(?P<double>(?:\\.|`[^`]*`|[^"\\`])*)"
    |(?P<open>['"])|(?P<nested>\$[{(])|(?P<ticks>`[^`]*`?)|(?P<comment>\#[^\n]*)|(?P<blank>[ \t\r]+)
    |(?P<mark>&&|\|\||[\n;&|()])|(?P<redirected>[<>][<>&\ ]*[^ \t\r\n;|]*)
    |(?P<plain>[\w./:=,@%+-]+|.)""",
    re.S | re.X,
)
"""What a script is made of, the first that fits. A comment or a redirection is one only where a
word may begin; `${` and `$(` go on to the bracket that closes them."""


BEGUN = re.compile(r"[$`]")
NAMED = re.compile(r"\$(\w+|[@*#])")
"""Where something may be put in, and the name of what is."""


@dataclass(slots=True)
class _Words:
    """Words and separators found so far, and the pieces of the word that is being read."""

    found: list[Word | str] = field(default_factory=list)
    pieces: list[tuple[str, str]] = field(default_factory=list)
    plain: str = ""

    def quote(self, text: str, mark: str) -> None:
        """Add a piece with its quote."""
        self.settle()
        self.pieces.append((text, mark))

    def settle(self) -> None:
        """Make what was read without quotes a piece."""
        if self.plain:
            self.pieces.append((self.plain, ""))
            self.plain = ""

    def end(self) -> None:
        """End the word."""
        self.settle()
        if self.pieces:
            self.found.append(Word(tuple(self.pieces)))
            self.pieces = []

    def begins(self, kind: str) -> bool:
        """Whether a comment, or a redirection with its number, may begin here."""
        before = self.plain.strip("0123456789") if kind == "redirected" else self.plain
        return not before and not self.pieces


def _tokens(text: str) -> list[Word | str]:
    """Words and separators.

    Raises InputError for a quote that is not closed.
    """
    words, at = _Words(), 0
    while match := LEXEME.match(text, at):
        kind, start, at = str(match.lastgroup), at, match.end()
        own = match[kind]
        if kind == "open":
            line = text.count("\n", 0, start) + 1
            raise InputError(f"launch line: the quote {own} of line {line} is not closed")
        if kind in ("comment", "redirected") and not words.begins(kind):
            kind, own, at = "plain", text[start], start + 1
        if kind == "nested":
            at = _closing(text, start + 1)
            words.plain += text[start:at]
        elif kind in ("plain", "ticks"):
            words.plain += own
        elif kind in ("escaped", "single"):
            words.quote(own, "'")
        elif kind == "double":
            joined = own.replace("\\\n", "")
            words.quote(re.sub(r'\\(["\\$`])', r"\1", joined), '"')
        elif kind == "redirected":
            words.plain = ""
        elif kind in ("blank", "mark"):
            words.end()
            words.found += [own] if kind == "mark" else []
    words.end()
    return words.found


def _closing(text: str, start: int) -> int:
    """Position behind the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] in "({":
            depth += 1
        elif text[i] in ")}":
            depth -= 1
            if depth == 0:
                return i + 1
    return len(text)


@dataclass(frozen=True, slots=True)
class _Array:
    """`NAME=(...)` or `NAME+=(...)`."""

    name: str
    more: bool
    words: tuple[Word, ...]


def _statements(tokens: list[Word | str]) -> list[list[Word | _Array]]:
    """Tokens cut at separators; arrays put together."""
    found: list[list[Word | _Array]] = [[]]
    i = 0
    while i < len(tokens):
        token = tokens[i]
        opens = i + 1 < len(tokens) and tokens[i + 1] == "("
        if isinstance(token, Word) and opens and (m := re.fullmatch(r"(\w+)(\+?)=", token.raw)):
            end = i + 2
            while end < len(tokens) and tokens[end] != ")":
                end += 1
            inner = tuple(word for word in tokens[i + 2 : end] if isinstance(word, Word))
            found[-1].append(_Array(m[1], bool(m[2]), inner))
            i = end + 1
            continue
        if isinstance(token, Word):
            found[-1].append(token)
        elif found[-1]:
            found.append([])
        i += 1
    return [statement for statement in found if statement]


MOST_SOURCED, LONGEST = 16, 2**20
"""Files that a script may source, and bytes of each."""

PREFIXES = ("export", "local", "declare", "readonly", "typeset", "set", "exec", "time", "nohup")
LOOPS = ("for", "while", "until", "case")
ENDS = ("done", "esac")
KEYWORDS = ("then", "do", "done", "{", "}", "else", "fi", "!")


OWN_FOLDER = re.compile(r"\s*dirname\s.*(\$0|\$\{0\}|BASH_SOURCE).*", re.S)
GONE = re.compile(
    r"""\s*cd\s+(?:--\s+)?["']?([\w./-]+)["']?\s*(?:>\s*/dev/null\s*)?(?:&&|;)\s*pwd[\s\-LP]*"""
)
"""How scripts find the folder that they are in, and the name of one that they go to."""

OF_CALLER = re.compile(r"\$\{?[\d@*]")
"""An argument that the caller gives."""


class _Reader:
    """Follows statements one after the other."""

    def __init__(self, script: Script, folder: Path | None) -> None:
        self.script = script
        self.folder = folder
        self.sourced = 0
        self.values: dict[str, list[str]] = {}
        self.taken: list[list[bool]] = []  # of each `if`: (this branch runs, one has run)
        self.loops = 0  # that stand around a statement

    @property
    def active(self) -> bool:
        return all(running for running, _ in self.taken)

    def statement(self, parts: list[Word | _Array]) -> None:
        """Follow one statement."""
        if [part.raw for part in parts[:2] if isinstance(part, Word)] == ["set", "--"]:
            given = [part for part in parts[2:] if isinstance(part, Word)]
            self._arguments([text for word in given for text in self.expand(word)])
            return
        rest = self._behind_keywords(parts)
        if not rest or not self.active:
            return
        words: list[Word] = []
        for part in rest:
            if isinstance(part, _Array):
                self._fill(part)
            elif not words and (match := re.match(r"([A-Za-z_]\w*)(\+?)=", part.pieces[0][0])):
                self._assign(part, match)
            else:
                words.append(part)
        command = [text for word in words for text in self.expand(word)]
        if len(command) > 1 and command[0] in (".", "source"):
            self._source(command[1])
        elif (inner := _inner(command)) is not None:
            before = len(self.script.commands)
            for statement in _statements(_tokens(command[inner + 1])):
                self.statement(statement)
            own = self.script.commands[before:]
            self.script.commands[before:] = [[*command[: inner - 1], *one] for one in own]
        elif len(command) == 4 and command[0] == MARK:
            self._write(command[1], command[2] == "2", command[3])
        elif command == ["shift"]:
            self._arguments(self.values.get("@", [])[1:])
        elif command:
            self.script.commands.append(command)

    def _write(self, number: str, more: bool, name: str) -> None:
        """Take in a text that the script writes to a file."""
        if not number.isdecimal() or int(number) >= len(self.script.texts):
            return
        text, open_ = self.script.texts[int(number)]
        name, files = name.removeprefix("./"), self.script.files
        before = files.get(name, "") if more else ""
        files[name] = before + (self.substitute(text) if open_ else text)

    def _arguments(self, words: list[str]) -> None:
        """Take in the arguments that the script is called with."""
        for name in [name for name in self.values if name.isdigit()]:
            del self.values[name]
        self.values |= {str(place): [word] for place, word in enumerate(words, start=1)}
        self.values |= {"@": words, "*": words, "#": [str(len(words))]}

    def _source(self, name: str) -> None:
        """Follow the statements of another file, where it is there."""
        folder = self.folder
        places = [] if folder is None else [folder / name, folder / name.rsplit("/", 1)[-1]]
        path = next((p for p in places if is_file(p) and p.stat().st_size < LONGEST), None)
        if path is None or self.sourced >= MOST_SOURCED:
            self.script.notes.append(f"{name}, which is sourced, is not followed")
            return
        self.sourced += 1
        text = path.read_text(encoding="utf-8", errors="replace")
        for statement in _statements(_tokens(_here_documents(text, self.script))):
            self.statement(statement)

    def _behind_keywords(self, parts: list[Word | _Array]) -> list[Word | _Array]:
        """What of a statement is left behind its keywords, which are followed; none of one that is
        a condition, or the head of a loop."""
        for place, part in enumerate(parts):
            word = part.raw if isinstance(part, Word) else ""
            if word in ("if", "elif"):
                self._condition(word, parts[place + 1 :])
                return []
            self.loops = max(self.loops - (word in ENDS), 0)
            if word in LOOPS:
                self.loops += 1
                self.script.notes.append(f"'{word}' is not followed; its body is read once")
                return []
            if word == "else" and self.taken:
                self.taken[-1] = [not self.taken[-1][1], True]
            elif word == "fi" and self.taken:
                self.taken.pop()
            elif word not in (*KEYWORDS, *PREFIXES):
                return parts[place:]
        return []

    def _fill(self, array: _Array) -> None:
        """Take in an array."""
        words = [text for word in array.words for text in self.expand(word)]
        self.values[array.name] = self.values.get(array.name, []) + words if array.more else words

    def _assign(self, part: Word, match: re.Match[str]) -> None:
        first, quote = part.pieces[0]
        pieces = ((first[match.end() :], quote), *part.pieces[1:])
        text = "".join(self.substitute(piece) if q != "'" else piece for piece, q in pieces)
        if text.startswith("$(") and text.endswith(")"):  # quotes within quotes: put in by pieces
            text = self._printed(text)
        before = " ".join(self.values.get(match[1], [])) if match[2] else ""
        usual = " ".join(self.values.get(match[1], []))
        if self.loops and usual.lower() not in ("", "none", "null") and OF_CALLER.match(text):
            return  # a loop over arguments, of which there are none: what counts without them stays
        self.values[match[1]] = [before + text]

    def _condition(self, word: str, parts: list[Word | _Array]) -> None:
        texts = [" ".join(self.expand(p)) if isinstance(p, Word) else "" for p in parts]
        held = self._test([t for t in texts if t not in ("[[", "[", "]]", "]")])
        if held is None:
            self.script.notes.append(f"'{' '.join(texts)}' is not known; taken as false")
        if word == "if":
            self.taken.append([bool(held), bool(held)])
        elif self.taken:
            before = self.taken[-1][1]
            self.taken[-1] = [bool(held) and not before, bool(held) or before]

    def _test(self, words: list[str]) -> bool | None:
        if len(words) == 2 and words[0] in ("-n", "-z"):
            empty = not words[1] or words[1].startswith("$")
            return empty if words[0] == "-z" else not empty
        if len(words) == 1 and words[0] in ("-n", "-z"):  # of an empty text
            return words[0] == "-z"
        if len(words) == 3:
            left, sign, right = words
            if re.match(r"\$\{?\d", left):  # an argument that the caller gives
                return None
            if sign in ("=", "==", "!="):
                return (left == right) == (sign != "!=")
            signs = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt,
                     "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le}  # fmt: skip
            if sign in signs:
                a, b = arithmetic(left), arithmetic(right)
                return None if a is None or b is None else bool(signs[sign](a, b))
        return None

    def expand(self, word: Word) -> list[str]:
        """The words that a word comes to: several of an array, or of a text with blanks."""
        if len(word.pieces) == 1 and word.pieces[0][1] != "'":
            text, quote = word.pieces[0]
            if match := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", text):
                return [part for item in self.values.get(match[1], []) for part in _split(item)]
            made = self.substitute(text)
            if quote and not (made.startswith("--") and made != text):
                return [made]
            return _split(made) if quote else made.split()
        found: list[str] = [""]
        for text, quote in word.pieces:
            made = text if quote == "'" else self.substitute(text)
            parts = made.split() if not quote and " " in made.strip() else [made]
            found[-1] += parts[0] if parts else ""
            found += parts[1:]
        return found

    def substitute(self, text: str) -> str:
        """Variables and arithmetic put in; what is not known stays as it is written."""
        found, i = "", 0
        while begun := BEGUN.search(text, i):
            at = begun.start()
            found += text[i:at]
            if text.startswith("$((", at):
                i = _closing(text, at + 1)
                value = arithmetic(self._names(text[at + 3 : i - 2]))
                found += text[at:i] if value is None else str(value)
            elif text.startswith("$(", at):
                i = _closing(text, at + 1)
                found += self._printed(text[at:i])
            elif text[at] == "`":
                i = text.find("`", at + 1) + 1 or len(text)
                found += self._printed(text[at:i])
            elif text.startswith("${", at):
                i = _closing(text, at + 1)
                found += self._braces(text[at:i])
            elif match := NAMED.match(text, at):
                i = match.end()
                found += self._value(match[1], match[0])
            else:
                found, i = found + text[at], at + 1
        return found + text[i:]

    def _printed(self, text: str) -> str:
        """What a command in a word prints, where that is arithmetic or the script's own folder."""
        inner = re.fullmatch(r"(?:\$\(|`)\s*expr\s(.*)[)`]", text, re.S)
        value = arithmetic(self._names(inner[1].replace("\\*", "*"))) if inner else None
        if value is not None:
            return str(value)
        own = text[1:-1] if text.startswith("`") else text[2:-1]
        if OWN_FOLDER.fullmatch(own):
            return "."
        gone = GONE.fullmatch(self.substitute(own)) if "pwd" in own else None
        return gone[1] if gone else text

    def _names(self, expression: str) -> str:
        text = self.substitute(expression)
        return re.sub(r"[A-Za-z_]\w*", lambda m: self._value(m[0], m[0]), text)

    def _value(self, name: str, otherwise: str) -> str:
        return " ".join(self.values[name]) if name in self.values else otherwise

    def _braces(self, text: str) -> str:
        match = re.fullmatch(r"\$\{(\w+|[@*#])(?:\[[^\]]*\])?(?::?([-=+])(.*))?\}", text, re.S)
        if not match:
            return text
        name, sign, other = match[1], match[2], match[3]
        if sign == "+":
            return self.substitute(other) if self._value(name, "") else ""
        if sign:
            found = self._value(name, "") or self.substitute(other).strip("\"'")
            if sign == "=":
                self.values[name] = [found]
            return found
        return self._value(name, text)


def _inner(command: list[str]) -> int | None:
    """Place of the `-c` behind which a shell's own script is; None where there is none."""
    for place, word in enumerate(command[1:-1], start=1):
        shell = command[place - 1].rsplit("/", 1)[-1] in ("bash", "sh", "zsh")
        shell = shell or command[0] == "bcprun"  # of NVIDIA's Base Command, which takes one too
        if shell and re.fullmatch(r"-[a-z]*c", word):
            return place
    return None


def _split(text: str) -> list[str]:
    """An array's item; scripts write '--flag value' as one and leave the split to the shell."""
    return text.split() if text.startswith("-") else [text]


BARE = re.compile(r"\$\{?\w+\}?")
"""A word that is a variable nobody set, which a shell leaves out."""


def options(words: list[str]) -> dict[str, str | bool]:
    """Flags with their values; True for a flag without one; the last of several counts.

    Several values are joined by blanks.
    """
    found: dict[str, str | bool] = {}
    name = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, separator, value = word.partition("=")
            found[name] = value if separator else True
        elif name is not None and not (BARE.fullmatch(word) and found[name] is not True):
            before = found[name]
            found[name] = word if before is True else f"{before} {word}"
    return found
