"""The pages of a static package index: HTML and JSON simple API. Pure: from entries to bytes.

Follows PEP 503 (names, pages), 592 (yanking), 629 (version), 658 and 714 (metadata files) and 691
(JSON). Links are relative, so the same folder serves from a web server and from `file://`.
"""

import html
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

_API = "1.1"
_PAGE = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="{api}">
<title>{title}</title>
</head>
<body>
{links}</body>
</html>
"""


@dataclass(frozen=True)
class Entry:
    """One published file.

    Attributes:
        filename: of the wheel.
        sha256: of its bytes.
        size: in bytes.
        metadata_sha256: of the METADATA file beside it.
        requires_python: "" for no bound.
        yanked: why it should not be chosen any more; "" if it should.
    """

    filename: str
    sha256: str
    size: int
    metadata_sha256: str
    requires_python: str = ""
    yanked: str = ""

    @property
    def project(self) -> str:
        """The normalised project name."""
        return normalize(self.filename.split("-")[0])

    @property
    def version(self) -> str:
        """As the file name has it."""
        return self.filename.split("-")[1]


def normalize(name: str) -> str:
    """A project name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write_pages(entries: Iterable[Entry]) -> dict[str, bytes]:
    """Every page of the index by path under its root; project pages first, the root last."""
    by_project: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e.filename):
        by_project.setdefault(entry.project, []).append(entry)
    pages = {}
    for project, found in by_project.items():
        pages[f"simple/{project}/index.html"] = _project_html(project, found)
        pages[f"simple/{project}/index.json"] = _project_json(project, found)
    links = "".join(f'<a href="{p}/">{p}</a><br>\n' for p in by_project)
    pages["simple/index.html"] = _PAGE.format(api=_API, title="Simple index", links=links).encode()
    root = {"meta": {"api-version": _API}, "projects": [{"name": p} for p in by_project]}
    pages["simple/index.json"] = _json(root)
    return pages


def read_entries(page: bytes) -> list[Entry]:
    """The entries of a project's JSON page.

    Raises:
        ValueError, KeyError or TypeError: it is none that `write_pages` wrote.
    """
    return [
        Entry(
            filename=row["filename"],
            sha256=row["hashes"]["sha256"],
            size=row["size"],
            metadata_sha256=row["core-metadata"]["sha256"],
            requires_python=row.get("requires-python", ""),
            yanked=row["yanked"] or "",
        )
        for row in json.loads(page)["files"]
    ]


def write_constraints(entries: Iterable[Entry]) -> bytes:
    """A constraints file that admits exactly these files, by hash; one version of each project."""
    hashes: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda e: e.filename):
        hashes.setdefault(f"{entry.project}=={entry.version}", []).append(entry.sha256)
    lines = [
        " \\\n    ".join([requirement, *(f"--hash=sha256:{digest}" for digest in found)])
        for requirement, found in hashes.items()
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _link(entry: Entry) -> str:
    attributes: Mapping[str, str] = {
        "href": f"../../files/{quote(entry.filename)}#sha256={entry.sha256}",
        "data-core-metadata": f"sha256={entry.metadata_sha256}",
        "data-dist-info-metadata": f"sha256={entry.metadata_sha256}",
        "data-requires-python": entry.requires_python,
        "data-yanked": entry.yanked,
    }
    shown = " ".join(f'{k}="{html.escape(v)}"' for k, v in attributes.items() if v)
    return f"<a {shown}>{html.escape(entry.filename)}</a><br>\n"


def _project_html(project: str, entries: list[Entry]) -> bytes:
    links = "".join(map(_link, entries))
    return _PAGE.format(api=_API, title=f"Links for {project}", links=links).encode()


def _project_json(project: str, entries: list[Entry]) -> bytes:
    table = {
        "meta": {"api-version": _API},
        "name": project,
        "versions": list(dict.fromkeys(entry.version for entry in entries)),
        "files": [_row(entry) for entry in entries],
    }
    return _json(table)


def _row(entry: Entry) -> dict[str, Any]:
    row = asdict(entry)
    metadata = {"sha256": row["metadata_sha256"]}
    return {
        "filename": entry.filename,
        "url": f"../../files/{quote(entry.filename)}",
        "hashes": {"sha256": entry.sha256},
        "size": entry.size,
        "core-metadata": metadata,
        "dist-info-metadata": metadata,
        "yanked": entry.yanked or False,
        **({"requires-python": entry.requires_python} if entry.requires_python else {}),
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
