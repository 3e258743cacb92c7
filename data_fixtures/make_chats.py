"""Writer of the conversations and preferences of `chat/`: invented, one of each case of the tests.

python data_fixtures/make_chats.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "chat"

SUBJECTS = (
    "tea", "rivers", "clocks", "moss", "bridges", "salt", "lanterns", "owls", "paper", "frost",
    "\u6d77", "caf\u00e9s", "\u043b\u0435\u0441", "\U0001f600 faces",
)  # fmt: skip
SYSTEM = "You answer in one sentence."
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "description": "Weighs a thing.",
        "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}},
    },
}


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    """Return one message."""
    return {"role": role, "content": content, **more}


def conversations() -> list[dict[str, Any]]:
    """Return conversations of one to four exchanges, some with a system turn, some with a tool."""
    found = []
    for number, subject in enumerate(SUBJECTS * 3):
        messages = [turn("system", SYSTEM)] if number % 3 == 0 else []
        for round_ in range(1 + number % 4):
            messages.append(turn("user", f"Question {round_} about {subject}?"))
            messages.append(
                turn("assistant", f"{subject} {number}: " + "well, " * (number % 7) + "so.")
            )
        record: dict[str, Any] = {"id": f"c{number}", "messages": messages}
        if number % 10 == 9:
            call = {"name": "weigh", "arguments": {"thing": subject}}
            record["tools"] = [TOOL]
            messages += [
                turn("user", f"How heavy are {subject}?"),
                turn("assistant", "", tool_calls=[{"type": "function", "function": call}]),
                turn("tool", json.dumps({"grams": number}), name="weigh"),
                turn("assistant", f"{number} grams."),
            ]
        found.append(record)
    return found


def pairs() -> list[dict[str, Any]]:
    """Return prompts with a better and a worse answer."""
    return [
        {"prompt": f"Say something of {subject}, number {number}.",
         "chosen": f"{subject} are older than they look.",
         "rejected": f"No. {'Never. ' * (number % 5)}"}
        for number, subject in enumerate(SUBJECTS * 2)
    ]  # fmt: skip


def labels() -> list[dict[str, Any]]:
    """Return conversations with a positive or negative label."""
    return [
        {"messages": [turn("user", f"And {subject}?"), turn("assistant", f"{subject}, {number}.")],
         "label": number % 3 == 0}
        for number, subject in enumerate(SUBJECTS * 2)
    ]  # fmt: skip


def groups() -> list[dict[str, Any]]:
    """Return prompts with one to four answers and their rewards."""
    return [
        {"prompt": f"Count the {subject}.",
         "responses": [f"{n} {subject}" for n in range(1 + number % 4)],
         "rewards": [n / 4 for n in range(1 + number % 4)]}
        for number, subject in enumerate(SUBJECTS)
    ]  # fmt: skip


def main() -> None:
    """Write all files."""
    HERE.mkdir(exist_ok=True)
    made = {"talks": conversations(), "pairs": pairs(), "labels": labels(), "groups": groups()}
    for name, records in made.items():
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
