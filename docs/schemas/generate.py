"""Write the JSON Schemas of everything that waltzctl prints, and the page of columns: ``python docs/schemas/generate.py``.

Each file stands alone (2020-12) and is strict: a key that is not listed is a mistake.  What an object consists of is said in its
table of columns (engine/columns, waltzctl/objects).  ``tests/cli/test_schemas.py`` fails when a file here is not what this
program writes, or when a command prints an object that its schema refuses.
"""

from __future__ import annotations

import json
from pathlib import Path

from waltzctl.objects.catalogue import OBJECTS

HERE = Path(__file__).resolve().parent


def files() -> dict[str, str]:
    """File name to contents."""
    return {f"{name}.schema.json": json.dumps(one.schema, indent=2) + "\n" for name, one in OBJECTS.items()}


if __name__ == "__main__":
    for file_name, text in files().items():
        (HERE / file_name).write_text(text)
