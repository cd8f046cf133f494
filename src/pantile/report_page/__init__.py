"""The page that shows a report: one HTML file with everything in it, made from small ones.

    page.html ─┐
    style.css ─┤
    dom.js, charts.js, table.js, model.js, views/*.js, main.js ─┼─►  report.html
    vendor/echarts.min.js ─┤
    the document of report.json ─┘

It is opened from a disk, offline. Its policy (CSP) forbids every request, and every script but the
two whose hashes it names: text of a report that found a way into the markup would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

#: The scripts in the order in which they need each other; they share one scope.
SCRIPTS = (
    "dom.js",
    "charts.js",
    "table.js",
    "model.js",
    "views/overview.js",
    "views/tiles.js",
    "views/liveness.js",
    "views/ops.js",
    "views/pipeline.js",
    "views/timeline.js",
    "views/scaling.js",
    "views/whatif.js",
    "views/compare.js",
    "views/raw.js",
    "main.js",
)


def page(report: Mapping[str, Any], *, against: Mapping[str, Any] | None = None) -> str:
    """The page for a report, with another one to compare it with if there is one."""
    charts, own = _asset("vendor/echarts.min.js"), _own_script()
    policy = (
        f"default-src 'none'; script-src {_hash(charts)} {_hash(own)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return _filled(
        _asset("page.html"),
        {
            "policy": escape(policy),
            "title": escape(f"{report['name']} ({report['kind']}): Pantile report"),
            "style": _asset("style.css"),
            "charts": charts,
            "script": own,
            "report": _embedded(report),
            "against": _embedded(against),
        },
    )


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with `{{name}}` replaced, once: what a part contains is never looked at."""
    first, *rest = template.split("{{")
    found = [first]
    for piece in rest:
        name, _, text = piece.partition("}}")
        found += [parts[name], text]
    return "".join(found)


def _embedded(data: Mapping[str, Any] | None) -> str:
    """JSON that cannot end the script element it lies in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


@cache
def _own_script() -> str:
    parts = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
