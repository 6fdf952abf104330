"""The few shapes that the pictures are made of. They have their own ground, for pages that are dark."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

INK, GREY, FAINT, PAPER = "#22303c", "#8a97a3", "#ccd5dd", "#fbfcfd"
GREEN, YELLOW, RED, BLUE = "#2f7d4f", "#e3b341", "#c0392b", "#dbe8f4"


def document(title: str, width: float, height: float, shapes: Sequence[str]) -> str:
    """Return a picture; its title is what a screen reader says."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" font-family="system-ui, sans-serif" font-size="14">'
    )
    ground = f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *shapes, "</svg>", ""])


def text(
    x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK, bold: bool = False
) -> str:
    """Words at a place: ``anchor`` is ``start``, ``middle`` or ``end``."""
    style = f'text-anchor="{anchor}" fill="{colour}"' + (' font-weight="700"' if bold else "")
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, colour: str, *, edge: str = "") -> str:
    """A filled box."""
    stroke = f' stroke="{edge}"' if edge else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{colour}"{stroke}/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="2"/>'


def cross(x: float, y: float, colour: str) -> str:
    """A cross around a place."""
    return line(x - 5, y - 5, x + 5, y + 5, colour) + line(x - 5, y + 5, x + 5, y - 5, colour)
