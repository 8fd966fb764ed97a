"""Write the pages of reference that are made from tables: `docs/reference/fields.md`."""

from __future__ import annotations

from pathlib import Path

from predictor.files import write_text
from reckon.views.fields import reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "fields.md"


def main() -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    write_text(PAGE, reference())
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
