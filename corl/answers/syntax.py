"""From tokens to an expression tree: LaTeX, plain and calculator notation in one grammar.

A tree is nested tuples: ``("q", number)``, ``("s", symbol)``, ``("+", [..])``, ``("*", [..])``, where ``("inv", a)``
among the factors divides by a, ``("/", a, b)``, ``("^", a, b)``, ``("neg", a)``, ``("pm", sign, a)``,
``("f", name, a)``, ``("m", name, [..])``, ``("root", n, a)``, ``("log", base, a)``, ``("binom", n, k)``,
``("sum" | "prod" | "int", variable, low, high, body)``, ``("inf",)``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from corl.answers.cursor import Cursor, NotMath
from corl.answers.letters import NAMES, letters
from corl.answers.lexer import Token, spell
from corl.answers.numerals import literal, periodic

__all__ = ["Node", "NotMath", "parse_expression"]

Node = tuple[Any, ...]

_FRACTIONS: Final = frozenset({"frac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"})
_BINOMIALS: Final = frozenset({"binom", "dbinom", "tbinom"})
_ACCENTS: Final = frozenset({"overline", "bar", "tilde", "widetilde", "dot", "ddot", "mathring", "check", "breve"})
_ALPHABETS: Final = frozenset({"mathcal", "mathscr", "mathfrak"})
_STARTS: Final = frozenset({"num", "periodic", "letter", "word", "text", "fn"})
_COMMAND_STARTS: Final = _FRACTIONS | _BINOMIALS | _ACCENTS | _ALPHABETS | {"sqrt", "sum", "prod", "int", "pi"}
_NO_DIGIT_AFTER: Final = frozenset({"num", "periodic", "letter", "word"})
_INFINITIES: Final = frozenset({"infinity", "infty", "inf", "oo"})
_OPENERS: Final = {"(": ")", "[": "]", "{": "}", "floor": "floor", "ceil": "ceil"}


def parse_expression(tokens: list[Token]) -> Node:
    """The tree of all these tokens.

    Raises:
        NotMath: they are no expression.
        TooHard: nested too deep, or a literal past the limits.
    """
    parser = _Parser(tokens)
    node = parser.whole()
    if parser.at < len(parser.tokens):
        raise NotMath(parser.tokens[parser.at].text)
    return node


class _Parser(Cursor):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.bars = 0  # open absolute values

    def whole(self) -> Node:
        r"""All of a group: a sum, or two with TeX's ``\over`` or ``\choose`` between them."""
        node = self.sum()
        if self.accept("cmd", "over"):
            return ("/", node, self.sum())
        if self.accept("cmd", "choose"):
            return ("binom", node, self.sum())
        return node

    def sum(self) -> Node:
        self.enter()
        terms = [self.term()]
        while (token := self.peek()) is not None and token.kind == "op":
            if token.text == "+":
                self.at += 1
                terms.append(self.term())
            elif token.text == "-":
                self.at += 1
                terms.append(("neg", self.term()))
            elif token.text in ("+-", "-+"):
                self.at += 1
                terms.append(("pm", 1 if token.text == "+-" else -1, self.term()))
            else:
                break
        self.depth -= 1
        return terms[0] if len(terms) == 1 else ("+", terms)

    def term(self) -> Node:
        factors = [self.signed()]
        while (token := self.peek()) is not None:
            if token.kind == "op" and token.text == "*":
                self.at += 1
                factors.append(self.signed())
            elif token.kind == "op" and token.text == "/":
                self.at += 1
                factors.append(("inv", self.signed()))
            elif self.starts(token):
                if token.kind in ("num", "periodic") and self.tokens[self.at - 1].kind in _NO_DIGIT_AFTER:
                    raise NotMath("a number after a number or symbol")
                factors.append(self.power())
            else:
                break
        if len(factors) == 2 and factors[1][0] == "inv":
            return ("/", factors[0], factors[1][1])
        return factors[0] if len(factors) == 1 else ("*", factors)

    def starts(self, token: Token) -> bool:
        """Whether a factor may begin here, so that standing side by side means a product."""
        if token.kind in _STARTS:
            return True
        if token.kind == "open":
            return token.text in _OPENERS
        if token.kind == "cmd":
            return token.text in _COMMAND_STARTS
        if token.kind == "op":
            return token.text == "|" and not self.bars
        return token.kind == "sym" and token.text == "inf"

    def signed(self) -> Node:
        token = self.peek()
        if token is not None and token.kind == "op" and token.text in ("+", "-", "+-", "-+"):
            self.at += 1
            self.enter()
            inner = self.signed()
            self.depth -= 1
            if token.text == "+":
                return inner
            return ("neg", inner) if token.text == "-" else ("pm", 1 if token.text == "+-" else -1, inner)
        return self.power()

    def power(self) -> Node:
        base = self.postfix(self.primary())
        if self.accept("op", "^"):
            self.enter()
            base = self.postfix(("^", base, self.exponent()))
            self.depth -= 1
        return base

    def exponent(self) -> Node:
        token = self.peek()
        if token is not None and token.kind == "op" and token.text in ("+", "-"):
            self.at += 1
            inner = self.exponent()
            return ("neg", inner) if token.text == "-" else inner
        if token is not None and token.kind == "word":
            self.split(token)  # LaTeX raises one letter only: e^xy is e^x y
        return self.power()

    def postfix(self, node: Node) -> Node:
        while (token := self.peek()) is not None:
            if token.kind == "op" and token.text == "!":
                self.at += 1
                node = ("f", "factorial2" if self.accept("op", "!") else "factorial", node)
            elif token.kind == "op" and token.text == "%":
                self.at += 1
                if (after := self.peek()) is not None and after.kind == "num":
                    raise NotMath("remainder")
                node = ("f", "percent", node)
            elif token.kind == "sym" and token.text == "degree":
                self.at += 1
                node = ("f", "degree", node)
            else:
                break
        return node

    def primary(self) -> Node:
        token = self.take()
        kind, text = token.kind, token.text
        if kind == "num":
            return self.number(token)
        if kind == "periodic":
            return ("q", periodic(text))
        if kind == "letter":
            return self.symbol(text)
        if kind in ("word", "text"):
            return self.word(token)
        if kind == "fn":
            return self.function(text)
        if kind == "open":
            return self.group(text)
        if kind == "op" and text == "|":
            self.bars += 1
            inner = self.sum()
            self.bars -= 1
            self.expect("op", "|")
            return ("f", "abs", inner)
        if kind == "sym" and text == "inf":
            return ("inf",)
        if kind == "cmd":
            self.enter()
            node = self.command(text)
            self.depth -= 1
            return node
        raise NotMath(text)

    def number(self, token: Token) -> Node:
        value: int | Fraction = literal(token.text).value
        if token.text.isdigit():
            mixed = self.mixed()
            if mixed is not None:
                return ("q", value + mixed)
        return ("q", value)

    def mixed(self) -> Fraction | None:
        r"""The fraction of a mixed number: after ``2`` in ``2\frac{4}{5}`` and ``2 4/5``."""
        rest = self.tokens[self.at : self.at + 7]
        shape = "".join(token.text if token.kind in ("open", "close", "op") else token.kind[0] for token in rest)
        if shape == "c{n}{n}" and rest[0].text in _FRACTIONS:
            top, bottom, length = rest[2].text, rest[5].text, 7
        elif shape.startswith("n/n") and rest[0].spaced:
            top, bottom, length = rest[0].text, rest[2].text, 3
        elif shape.startswith("cn") and rest[0].text in _FRACTIONS and len(rest[1].text) == 2:
            top, bottom, length = rest[1].text[0], rest[1].text[1], 2
        else:
            return None
        if not (top.isdigit() and bottom.isdigit() and max(len(top), len(bottom)) < 20):
            return None
        if not 0 < int(top) < int(bottom):
            return None
        self.at += length
        return Fraction(int(top), int(bottom))

    def symbol(self, name: str) -> Node:
        if self.see("op", "_"):
            self.at += 1
            name = f"{name}_{spell(self.argument())}"
        while self.accept("op", "'"):
            name += "'"
        if name in ("partial", "nabla"):
            raise NotMath(name)
        return ("s", name)

    def word(self, token: Token) -> Node:
        if token.text in _INFINITIES:
            return ("inf",)
        if token.kind == "text" and len(token.text) > 1 and not (token.text.isupper() and len(token.text) < 5):
            if token.text not in ("pi", "exp", "ln", "log", "sin", "cos", "tan", "lcm", "gcd", "arctan", "max", "min"):
                raise NotMath(token.text)
            return self.symbol("pi") if token.text == "pi" else self.function(token.text)
        self.at -= 1
        self.split(token)
        return self.primary()

    def split(self, token: Token) -> None:
        """Replace the word that comes next by its letters and function names, which then count one by one."""
        parts = letters(token.text)
        kinds = ["fn" if len(part) > 1 and part not in NAMES else "letter" for part in parts]
        self.tokens[self.at : self.at + 1] = [Token(k, p, False) for k, p in zip(kinds, parts, strict=True)]

    def value(self) -> Node:
        r"""A LaTeX argument as an expression: ``{..}``, or one digit or token (``\frac12``)."""
        token = self.peek()
        if token is not None and token.kind == "num" and token.text.isdigit() and len(token.text) > 1:
            self.tokens[self.at] = Token("num", token.text[1:], False)
            return ("q", int(token.text[0]))
        if token is not None and token.kind == "word":
            self.split(token)
        if token is not None and token.kind == "op" and token.text in ("+", "-"):
            return self.signed()
        return self.primary()

    def group(self, opener: str) -> Node:
        closer = _OPENERS.get(opener)
        if closer is None:
            raise NotMath(opener)
        bars, self.bars = self.bars, 0
        inner = self.whole()
        self.bars = bars
        self.expect("close", closer)
        return ("f", opener, inner) if opener == closer else inner

    def function(self, name: str) -> Node:
        base: Node | None = None
        exponent: Node | None = None
        if name == "log" and self.accept("op", "_"):
            base = self.primary()
        if self.accept("op", "^"):
            exponent = self.exponent()
        if name == "log" and base is None and self.accept("op", "_"):
            base = self.primary()
        if name in ("gcd", "lcm", "max", "min"):
            return ("m", name, self.arguments())
        if exponent == ("neg", ("q", 1)) and not name.startswith("arc"):
            name, exponent = "arc" + name, None
        inner = self.operand()
        node: Node = ("log", base, inner) if base is not None else ("f", name, inner)
        return node if exponent is None else ("^", node, exponent)

    def arguments(self) -> list[Node]:
        closer = _OPENERS.get(self.take().text)
        nodes = [self.sum()]
        while self.accept("sep", ","):
            nodes.append(self.sum())
        self.expect("close", closer or ")")
        return nodes

    def operand(self) -> Node:
        r"""What a function written without brackets applies to: the factors up to the next sign or function."""
        token = self.peek()
        if token is None:
            raise NotMath("function of nothing")
        if token.kind == "open" and token.text in ("(", "[", "{"):
            return self.primary()
        self.enter()
        factors = [self.signed()]
        while (token := self.peek()) is not None and self.starts(token):
            if token.kind == "fn" or (token.kind == "cmd" and token.text in ("sum", "prod", "int")):
                break
            if token.kind in ("num", "periodic"):
                break
            factors.append(self.power())
        self.depth -= 1
        return factors[0] if len(factors) == 1 else ("*", factors)

    def command(self, name: str) -> Node:
        if name in _FRACTIONS:
            top = self.at
            above = self.value()
            middle = self.at
            below = self.value()
            if _differential(self.tokens[top:middle]) and _differential(self.tokens[middle : self.at]):
                raise NotMath("derivative")
            return ("/", above, below)
        if name in _BINOMIALS:
            return ("binom", self.value(), self.value())
        if name == "sqrt":
            index: Node = ("q", 2)
            if self.accept("open", "["):
                index = self.sum()
                self.expect("close", "]")
            return ("root", index, self.primary())
        if name in _ACCENTS or name in _ALPHABETS:
            return self.symbol(f"{name} {spell(self.argument())}")
        if name in ("sum", "prod", "int"):
            return self.bounded(name)
        raise NotMath(name)

    def bounded(self, name: str) -> Node:
        low: Node | None = None
        high: Node | None = None
        variable = ""
        for _ in range(2):
            if self.accept("op", "_"):
                if name == "int":
                    low = self.limit()
                else:
                    inner = self.argument()
                    if len(inner) < 3 or inner[0].kind not in ("letter", "text") or inner[1].text != "=":
                        raise NotMath("range")
                    variable, low = inner[0].text, parse_expression(inner[2:])
            elif self.accept("op", "^"):
                high = self.limit()
        if name == "int":
            variable, body = self.integrand()
        else:
            body = self.term()
        if low is None or high is None:
            raise NotMath("no bounds")
        return (name, variable, low, high, body)

    def limit(self) -> Node:
        if self.accept("op", "-"):
            return "neg", self.value()
        return self.value()

    def integrand(self) -> tuple[str, Node]:
        """The tokens up to ``dx``, and the variable."""
        depth = 0
        for at in range(self.at, len(self.tokens)):
            token = self.tokens[at]
            depth += (token.kind == "open") - (token.kind == "close")
            if depth < 0:
                break
            if depth == 0 and token.kind in ("word", "letter", "text"):
                after = self.tokens[at + 1] if at + 1 < len(self.tokens) else None
                body = self.tokens[self.at : at]
                if token.text == "d" and after is not None and after.kind in ("letter", "text"):
                    self.at = at + 2
                    return after.text, parse_expression(body) if body else ("q", 1)
                if token.kind == "word" and token.text[-2] == "d":
                    if len(token.text) > 2:
                        body.append(Token("word" if len(token.text) > 3 else "letter", token.text[:-2], token.spaced))
                    self.at = at + 1
                    return token.text[-1], parse_expression(body) if body else ("q", 1)
        raise NotMath("no differential")


def _differential(tokens: list[Token]) -> bool:
    inner = [token for token in tokens if token.kind in ("letter", "word", "text")]
    return bool(inner) and inner[0].text[0] == "d" and len(tokens) <= 6
