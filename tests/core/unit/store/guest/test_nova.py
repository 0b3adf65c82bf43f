"""The store should answer as Nova for the same facts, but for the decisions of the page.

tests/soak/store/nova_program.py has recorded Nova's answers. A difference has the name of its path;
of a member of JSON, and of the content's type, the name continues after a colon.
"""

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.core.docs import page
from tests.core.unit.store.guest.crawling import asker, crawl

ROOT = Path(__file__).parents[5]
FACTS, RECORDED = (
    json.loads((ROOT / f"tests/data/nova/{name}.json").read_text()) for name in ("facts", "34.0.0")
)
DECISIONS = page.rows((ROOT / "doc/source/nova-differences.rst").read_text())[1:]
"""Names of differences, what Nova has, what the store has, the reason."""
ABSENT = "absent"
LITERAL = re.compile(r"``([^`]*)``")
Answers = dict[str, tuple[str, Any]]
Difference = tuple[str, Any, Any]


def body_of(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def recorded(name: str) -> Answers:
    """Return Nova's answers by path, for each version."""
    result: Answers = {}
    for path, answers in RECORDED[name].items():
        root, version_of, rest = path.partition("VERSION")
        if not version_of:
            result[path.rstrip("/")] = tuple(answers)
            continue
        answer = None
        for version in RECORDED[name][root][1].split("\n"):
            answer = answers.get(version, answer)
            if answer:
                result[f"{root}{version}{rest}".rstrip("/")] = tuple(answer)
    return result


def stored(name: str, nova: Answers) -> Answers:
    """Return the store's answers by path, for what either of them lists."""
    facts = FACTS[name]
    document = dict(facts["document"])
    if name == "full":
        document["network_data"] = nova["/openstack/latest/network_data.json"][1]
    ask = asker(
        document,
        userdata=None if facts["userdata"] is None else facts["userdata"].encode("latin-1"),
        password=facts["password"].encode(),
        project_id=facts["project_id"],
        mac=facts["nova"]["ports"][0]["mac"],
    )
    listed = {path.rstrip("/") for path, _answer in crawl(ask) if "/nocloud" not in path}
    answers = {path: ask(path or "/") for path in listed | nova.keys()}
    return {
        path: (answer.content_type, body_of(answer.body.decode("latin-1")))
        for path, answer in answers.items()
        if answer.status == 200
    }


def differences(nova: Answers, store: Answers) -> Iterator[Difference]:
    folders = {path.rpartition("/")[0] for path in {*nova, *store}}
    for path in sorted({*nova, *store}):
        at_nova, at_store = nova.get(path), store.get(path)
        if at_nova is None or at_store is None:
            yield path, at_nova[1] if at_nova else ABSENT, at_store[1] if at_store else ABSENT
            continue
        if at_nova[0] != at_store[0]:
            yield f"{path}: Content-Type", at_nova[0], at_store[0]
        if path in folders:
            # What only one of them lists is a difference of its own path.
            common = [listing(path, body, {*nova} & {*store}) for body in (at_nova[1], at_store[1])]
            yield from inner(path, *common)
        else:
            yield from inner(path, at_nova[1], at_store[1])


def listing(folder: str, body: str, known: set[str]) -> str:
    lines = [line for line in body.split("\n") if f"{folder}/{re.sub('[=/].*', '', line)}" in known]
    return "\n".join(lines)


def inner(name: str, at_nova: Any, other: Any) -> Iterator[Difference]:
    if isinstance(at_nova, dict) and isinstance(other, dict):
        for member in {**at_nova, **other}:
            path = f"{name}.{member}" if ": " in name else f"{name}: {member}"
            yield from inner(path, at_nova.get(member, ABSENT), other.get(member, ABSENT))
    elif isinstance(at_nova, list) and isinstance(other, list) and len(at_nova) == len(other):
        for pair in zip(at_nova, other, strict=True):
            yield from inner(name, *pair)
    elif at_nova != other:
        yield name, at_nova, other


def fits(cell: str, value: Any) -> bool:
    """Whether a cell of literals, or of a word for a kind of value, has the value; prose does."""
    words = {"absent": value == ABSENT, "empty": value in ("", [], {}), "null": value is None}
    if cell in words:
        return words[cell]
    return bool(LITERAL.sub("", cell).strip(", ")) or str(value) in LITERAL.findall(cell)


def test_each_difference_is_a_decision_of_the_page() -> None:
    used = set()
    for name in FACTS:
        nova = recorded(name)
        for difference, at_nova, at_store in differences(nova, stored(name, nova)):
            rows = [
                row
                for row in DECISIONS
                if any(fnmatchcase(difference, pattern) for pattern in LITERAL.findall(row[0]))
                and fits(row[1], at_nova)
                and fits(row[2], at_store)
            ]
            assert rows, (name, difference, at_nova, at_store)
            used.update(rows)
    assert [row for row in DECISIONS if row not in used] == [], "no such difference"
